"""What people look at: one timeline, one set of figures, tables and charts, for real and simulated runs alike."""

from __future__ import annotations

from tailrace.report.comparison_page import Compared, compare_page
from tailrace.report.errors import MeasuredError, ReportError
from tailrace.report.figures.steady import measured, steady
from tailrace.report.figures.system import Figures
from tailrace.report.fold.folds import Folds
from tailrace.report.record import Record, read_record
from tailrace.report.run_page import write_report

__version__ = "0.1.0"
__all__ = [
    "Compared",
    "Figures",
    "Folds",
    "MeasuredError",
    "Record",
    "ReportError",
    "compare_page",
    "measured",
    "read_record",
    "steady",
    "write_report",
]
