from .cost import Estimate as Estimate
from .cost import estimate as estimate
from .papers import PAPERS as PAPERS
from .papers import PaperTask as PaperTask
from .papers import Settings as Settings
from .reproduction import Reproduction as Reproduction
from .run import reproduce as reproduce
from .tasks import load_tasks as load_tasks
