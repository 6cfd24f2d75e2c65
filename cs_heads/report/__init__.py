"""The report of findings: one HTML file that opens anywhere, without a network."""

from cs_heads.report.findings import Findings as Findings
from cs_heads.report.page import write_report as write_report
