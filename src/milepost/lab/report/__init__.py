"""The report of a sweep: gather what the store knows, then write it as a page, as JSON, CSV or Markdown."""

from milepost.lab.report.export import to_csv as to_csv
from milepost.lab.report.export import to_json as to_json
from milepost.lab.report.gather import gather as gather
from milepost.lab.report.markdown import to_markdown as to_markdown
from milepost.lab.report.page import page as page
from milepost.lab.report.page import write as write
from milepost.lab.statistics.findings import Findings as Findings
from milepost.lab.statistics.findings import Measure as Measure
from milepost.lab.statistics.findings import Ran as Ran
from milepost.lab.statistics.findings import Row as Row
