from .annealed import annealed as annealed
from .compressed_sensing import compressed_sensing as compressed_sensing
from .compressed_sensing import tune as tune
from .find import METHODS as METHODS
