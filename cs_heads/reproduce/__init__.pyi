from .models import side_by_side as side_by_side
from .papers import PAPERS as PAPERS
from .papers import PaperSettings as PaperSettings
from .papers import PaperTask as PaperTask
from .reproduction import Reproduction as Reproduction
from .run import estimate as estimate
from .run import reproduce as reproduce
from .tasks import load_tasks as load_tasks
