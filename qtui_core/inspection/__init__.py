"""What a whole checkpoint contains, and what each scheme would do to it.

`census` needs only headers and no numpy; `inspect_model` reads values.
"""

from qtui_core.inspection.report import (
    Census,
    DtypeCount,
    Inspection,
    SchemeTotal,
    TensorReport,
)
