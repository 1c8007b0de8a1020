"""SGLang's compiled kernels, absent on CPU: without AMX its layers take their plain PyTorch path and call none of them."""

from apd_inert import make_inert

__version__ = "999.0"  # above every lower bound that SGLang asks for
make_inert(__name__)
