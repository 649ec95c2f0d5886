"""`qtui calibrate`: measures what the GPU takes besides tensors, and writes a profile."""

from __future__ import annotations

import click

from qtui.cli.options import ReportOptions, report_options


@click.command("calibrate", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--device",
    default="cuda",
    show_default=True,
    metavar="DEVICE",
    help="Which GPU: cuda, or cuda:N as CUDA_VISIBLE_DEVICES counts them.",
)
@click.option("--no-steps", is_flag=True, help="Run no training steps: seconds, not minutes.")
@click.option("--dry-run", is_flag=True, help="Measure, and write no profile.")
@report_options
def command(
    device: str,
    no_steps: bool,
    dry_run: bool,
    report: ReportOptions,
) -> None:
    """Measure what the GPU of this machine takes besides tensors: the CUDA context, cuBLAS
    workspaces, and segments of the allocator. Also runs a few training steps. Takes under two
    minutes.

    Writes a profile of the GPU to the user's data folder. Later estimates for the same GPU use it,
    and say so.

    Exit code 4 means that there is no usable GPU.
    """
    from qtui.cli.exits import Narrator
    from qtui.engine.calibration.profile import make_profile
    from qtui.profiles import write_profile
    from qtui.report.calibrate import calibrate_document
    from qtui_core.errors import UsageError
    from qtui_core.training.run.placement import NoGpu

    target = report.target()
    if device == "cpu":
        raise NoGpu("Only a GPU has a profile; name one with --device cuda or cuda:N.")
    if not device.startswith("cuda"):
        raise UsageError(f"{device!r} is no GPU; use --device cuda or cuda:0.")
    with Narrator() as narrator:
        profile = make_profile(
            device, lambda text: narrator.say(f"qtui: {text}"), steps=not no_steps
        )
    path = None if dry_run else write_profile(profile)
    report.write(calibrate_document(profile, path), target)
