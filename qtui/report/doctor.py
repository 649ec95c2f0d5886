"""The document of `qtui doctor`: the machine, and whether its libraries agree with qtui."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qtui.report.conformance import conformance_sections
from qtui.report.document import Column, Document, Facts, Section, Table
from qtui.report.surroundings import Files, Surroundings, Terminal
from qtui_core.codec import or_null, printed
from qtui_core.conformance.convention import LibraryReport
from qtui_core.conformance.findings import conclude
from qtui_core.dataclass import dataclass
from qtui_core.extras import install_command
from qtui_core.models.files.local import MOST_TEXT_BYTES
from qtui_core.models.hub import PATIENCE_SECONDS, SLOWEST
from qtui_core.quantities import format_bytes, plural

TITLE = "qtui doctor"
#: The smallest terminal the app draws in, as (columns, lines).
SMALLEST = (60, 16)


@dataclass(frozen=True)
class Warning:
    """Something that will go wrong on this machine: the part it concerns, what is wrong, the
    consequence, and what to do; `refuses` if the app does not start."""

    about: str
    says: str
    consequence: str
    remedy: str
    detail: str = ""
    refuses: bool = False

    PRINTED = ("about", "says", "consequence", "remedy", ("detail", or_null("detail")))


def doctor_document(
    around: Surroundings, checked: Sequence[LibraryReport] | None, *, details: bool
) -> Document:
    """The report. `checked` is None if libraries were not checked. `details` describes each
    convention with its sentence, its call and an example."""
    warnings = find_warnings(around)
    sections = list(around_document(around).sections)
    # Warnings come first, as the rest is long.
    if warnings:
        sections.append(Section("Warnings", (_warnings(warnings),)))
    if checked is not None:
        sections += conformance_sections(checked, details=details)
    conclusion = _conclude_without(around) if checked is None else conclude(checked)
    refused = [warning for warning in warnings if warning.refuses]
    if checked is not None and refused:
        conclusion += f" {_refused(refused[0])}."
    data = {
        **printed(around),
        "conformance": printed(checked),
        "warnings": printed(warnings),
    }
    return Document(TITLE, tuple(sections), conclusion, data)


def around_document(around: Surroundings) -> Document:
    """The beginning of the report, of which nothing depends on the libraries' answers."""
    sections = (
        Section("Terminal", (_terminal(around.terminal),)),
        Section("Machine", (_machine(around),)),
        Section("Libraries", (_versions(around.versions),)),
        Section("Files", (_files(around.files),)),
    )
    return Document(TITLE, sections, "")


def find_warnings(around: Surroundings) -> list[Warning]:
    """The warnings about the machine."""
    return _terminal_warnings(around.terminal) + _machine_warnings(around)


def _terminal_warnings(terminal: Terminal) -> list[Warning]:
    found = []
    if terminal.columns is not None and terminal.lines is not None:
        small = terminal.columns < SMALLEST[0] or terminal.lines < SMALLEST[1]
        if small:
            found.append(
                Warning(
                    "terminal",
                    f"{terminal.columns} x {terminal.lines} cells is less than "
                    f"{SMALLEST[0]} x {SMALLEST[1]}",
                    "the app shows a message instead of its panels",
                    "make the window larger or its font smaller",
                )
            )
        if terminal.term in ("", "dumb"):
            found.append(
                Warning(
                    "terminal",
                    f"TERM is {terminal.term!r}",
                    "the app cannot draw and refuses to start",
                    "set TERM to what the terminal is, for example xterm-256color",
                    refuses=True,
                )
            )
    if not terminal.unicode and terminal.columns is not None:
        found.append(
            Warning(
                "terminal",
                f"the encoding is {terminal.encoding}, not UTF-8",
                "maps and plots are drawn in ASCII, with half the resolution",
                "set LANG to a UTF-8 locale, for example C.UTF-8",
            )
        )
    if terminal.depth == "256" and "no RGB" in terminal.depth_why:
        found.append(
            Warning(
                "tmux",
                "tmux names no RGB for the terminal around it",
                "maps use 256 colours where the terminal may have 16 million",
                "if it has, put `set -as terminal-features ',*:RGB'` into ~/.tmux.conf, "
                "and detach and attach again",
            )
        )
    return found


def _machine_warnings(around: Surroundings) -> list[Warning]:
    found = []
    torch = around.versions.get("torch") or ""
    if around.devices and torch.endswith("+cpu"):
        found.append(
            Warning(
                "torch",
                f"{torch} is a build for the CPU, and this machine has "
                f"{plural(len(around.devices), 'GPU')}",
                "nothing runs on the GPU",
                "install the build for CUDA, as pytorch.org/get-started says",
            )
        )
    if around.files.config_error is not None:
        found.append(
            Warning(
                "configuration",
                around.files.config_error.rstrip("."),
                "the app does not start",
                f"correct {around.files.config}, or remove it",
                refuses=True,
            )
        )
    return found


def _terminal(terminal: Terminal) -> Facts:
    size = "stdout is no terminal"
    if terminal.columns is not None:
        size = f"{terminal.columns} x {terminal.lines} cells"
    colours = {"truecolor": "16 million", "256": "256", "16": "16", "none": "none"}
    background = "light" if terminal.light else "dark"
    return Facts(
        (
            ("size", size),
            ("TERM", terminal.term or "not set"),
            ("COLORTERM", terminal.colorterm or "not set"),
            ("colours qtui will use", _because(colours[terminal.depth], terminal.depth_why)),
            ("background", _because(background, terminal.light_why)),
            ("drawing", "Unicode" if terminal.unicode else f"ASCII ({terminal.encoding})"),
            ("inside", terminal.multiplexer or "no multiplexer"),
            ("over SSH", "yes" if terminal.ssh else "no"),
        )
    )


def _because(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def _machine(around: Surroundings) -> Facts:
    machine, driver = around.machine, around.driver
    instructions = f" ({', '.join(machine.instructions)})" if machine.instructions else ""
    cores = plural(machine.cores, "core")
    threads = [("threads", f"at most {machine.threads} in each process (--threads)")]
    memory = f"{_bytes(machine.memory_available)} free of {_bytes(machine.memory_total)}"
    if machine.memory_limit is not None:
        memory += f", limited to {format_bytes(machine.memory_limit)}"
    pairs = [
        ("system", f"{machine.system}, {machine.kernel}, {machine.architecture}"),
        ("Python", f"{machine.python} ({machine.python_path})"),
        ("processor", f"{machine.processor or 'N/A'}, {cores}{instructions}"),
        ("memory", memory),
        *threads * (machine.threads is not None),
    ]
    if driver is None:
        pairs.append(("GPU", "none: no NVIDIA driver answers"))
    else:
        cuda = "N/A" if driver.cuda is None else "{}.{}".format(*driver.cuda)
        pairs.append(("driver", f"{driver.version or 'N/A'}, CUDA up to {cuda}"))
        pairs += [
            (
                f"GPU {device.label}",
                "does not answer: it was lost, or this user may not ask; `nvidia-smi` says which"
                if device.name is None and device.memory_total is None
                else f"{device.name or 'N/A'}, {_bytes(device.memory_used)} used of "
                f"{_bytes(device.memory_total)}",
            )
            for device in around.devices
        ]
        if not around.devices:
            pairs.append(("GPU", "none: the driver shows no device"))
    return Facts(tuple(pairs))


def _bytes(count: int | None) -> str:
    return "N/A" if count is None else format_bytes(count)


def _versions(versions: Mapping[str, str | None]) -> Table:
    return Table(
        columns=(Column("library", key=True), Column("version")),
        rows=tuple(
            (name, version or f"not installed: {install_command(name)}")
            for name, version in versions.items()
        ),
        tones=tuple("" if version else "dim" for version in versions.values()),
    )


def _files(files: Files) -> Facts:
    state = "" if files.config_exists else " (none yet: defaults)"
    cache = "N/A"
    if files.cache is not None:
        held = "cannot be read" if files.models is None else plural(files.models, "model")
        cache = f"{files.cache} ({held})"
    hub = files.endpoint or "N/A"
    pairs = (
        ("configuration", f"{files.config}{state}"),
        ("log of the app", str(files.log)),
        ("cache of the hub", cache),
        ("hub", f"{hub}, offline" if files.offline else hub),
        (
            "limits of the hub",
            f"{format_bytes(MOST_TEXT_BYTES)} a configuration; "
            f"{PATIENCE_SECONDS:.0f} s, then {format_bytes(SLOWEST)} a second",
        ),
    )
    return Facts(tuple(pairs))


def _warnings(warnings: Sequence[Warning]) -> Facts:
    return Facts(
        tuple(
            (
                w.about,
                f"{w.says}{f' ({w.detail})' if w.detail else ''}. So {w.consequence}. "
                f"Do: {w.remedy}.",
            )
            for w in warnings
        )
    )


def _conclude_without(around: Surroundings) -> str:
    terminal = around.terminal
    colours = "without colour" if terminal.depth == "none" else f"in {terminal.depth} colours"
    colours = colours.replace("truecolor colours", "true colour")
    where = f"qtui will draw {colours}, in {'Unicode' if terminal.unicode else 'ASCII'}"
    refused = [warning for warning in find_warnings(around) if warning.refuses]
    if refused:
        where = _refused(refused[0])
    elif terminal.columns is None:
        where = "stdout is no terminal, so the app does not start here"
    where = where if where.startswith("qtui") else where[0].upper() + where[1:]
    gpus = plural(len(around.devices), "GPU") if around.devices else "no GPU"
    return (
        f"{where}; this machine has {plural(around.machine.cores, 'core')} and {gpus}; no library "
        f"was asked what it does: leave out --no-conformance to know."
    )


def _refused(warning: Warning) -> str:
    return f"The app does not start, because {warning.says}: {warning.remedy}"
