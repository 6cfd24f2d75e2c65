"""The report of a study: one HTML file that opens anywhere, without a network."""

from cs_heads.views.report.page import write_report as write_report
from cs_heads.views.report.study import Section as Section
from cs_heads.views.report.study import Study as Study
