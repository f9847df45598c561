"""Networks: each is a function (num_classes=...) -> nn.Module."""

from zosam.models.digits_net import digits_net

MODELS = {f.__name__: f for f in (digits_net,)}

__all__ = ["MODELS", "digits_net"]
