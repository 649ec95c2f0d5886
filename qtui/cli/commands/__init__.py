"""The commands of qtui, a file for each: options, the work to do, and the report to write."""

#: Command -> (module, one line of help). The module holds a click command named `command`.
COMMANDS = {
    "inspect": (
        "qtui.cli.commands.inspect",
        "What quantizing a model would cost, tensor by tensor.",
    ),
    "eval": (
        "qtui.cli.commands.eval",
        "How far a quantized model is from the original: KL, loss, agreement.",
    ),
    "memory": (
        "qtui.cli.commands.memory",
        "What a run needs on a GPU, byte by byte, before it runs.",
    ),
    "train": ("qtui.cli.commands.train", "A real run, measured and compared with its estimate."),
    "lab": (
        "qtui.cli.commands.lab",
        "What low precision does to learning: experiments that train.",
    ),
    "replay": ("qtui.cli.commands.replay", "A recorded run again, in the app or as a report."),
    "formats": ("qtui.cli.commands.formats", "A value in every number format."),
    "calibrate": (
        "qtui.cli.commands.calibrate",
        "What the GPU here takes besides tensors, measured for estimates.",
    ),
    "serve": ("qtui.cli.commands.serve", "The app in a browser, on this machine."),
    "doctor": (
        "qtui.cli.commands.doctor",
        "What this machine has, and whether its libraries agree.",
    ),
}
