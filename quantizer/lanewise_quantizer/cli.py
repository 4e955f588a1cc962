"""What the quantizer adds to the ``lanewise`` command; imports nothing that takes time."""

from lanewise.commands.registration import Command
from lanewise.settings import QuantizeSettings

QUANTIZE = Command(
    QuantizeSettings,
    "lanewise_quantizer.commands.quantize",
    "write a model in fewer bits",
    usage="MODEL -o DIR [--format NAME | --bits N | --target-kl N] [--calibrate TEXT]",
    example="Qwen/Qwen3-0.6B -o qwen3-small",
    multiplies=True,
)
