"""Environment variables that change requests to the hub, valid and invalid ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hub_models import says
from huggingface_hub import constants

from qtui_core.models.hub import _reason, check_token


@pytest.fixture
def run(tmp_path: Path):
    """Opens models in a process of its own, configured by environment variables alone."""

    def run_program(text: str, **settings: str) -> tuple[int, str, str]:
        program = (
            "import sys\n"
            "from qtui_core.errors import ModelError\n"
            "from qtui_core.models import open_model\n"
            "try:\n"
            "    source = open_model(sys.argv[1])\n"
            "    print(source.parameters, bytes(source.read_rows('small', 0, 4)).hex())\n"
            "except ModelError as error:\n"
            "    sys.exit(str(error))\n"
        )
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        environment |= {"HF_HOME": str(tmp_path / "home"), **settings}
        done = subprocess.run(
            [sys.executable, "-c", program, text],
            capture_output=True,
            text=True,
            env=environment,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    return run_program


def test_no_network(run):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        code, out, err = run("org/two", HF_ENDPOINT=f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert (code, out) == (1, "")
    assert err.startswith("Could not get 'org/two' from http://127.0.0.1")
    assert "Connection refused" in err
    assert "Traceback" not in err


def test_settings_the_library_does_not_start_with(run):
    code, out, err = run("org/two", HF_HUB_DOWNLOAD_TIMEOUT="abc")
    assert (code, out) == (1, "")
    assert "'abc'" in err
    assert err.endswith("Check the environment variables that begin with HF_.\n")


@pytest.mark.parametrize("address", ["nonsense", "ftp://h", "http://[::1"])
def test_an_endpoint_that_is_no_address(run, address):
    code, out, err = run("org/two", HF_ENDPOINT=address)
    assert (code, out) == (1, "")
    assert "protocol" in err or "environment variables that begin with HF_" in err


@pytest.mark.parametrize("token", ["hf_é", "hf_a\x01b", "hf_“quoted”"])
def test_a_token_that_cannot_be_sent(hub, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    message = says("org/one", "login token holds a character that no token has")
    assert "network" not in message
    assert "hf_" not in message
    assert not hub.requests
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)  # and is not
    check_token()


def test_reasons_bring_no_full_stop_of_their_own():
    assert _reason(ValueError("It is\n not so.")) == "It is not so"
    assert _reason(ValueError("")) == "ValueError"
    assert _reason(ValueError("\x1b[31m" + "x" * 500)).isprintable()
