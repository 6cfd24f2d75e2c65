from .compressed_sensing import compressed_sensing as compressed_sensing
from .find import METHODS as METHODS
