"""torch's transformer layers, written out so that torch.fx can follow them; attention itself stays torch's.

nn.TransformerEncoder, nn.TransformerEncoderLayer and nn.MultiheadAttention decide many things in Python. In their plain
use, self-attention without masks, they are what stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def written_out(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """A call of one of these layers as plain operations; None if it is another layer, or no plain use of it."""
    write = WAYS.get(type(module))
    if write is None or any(value is not None and value is not False for value in kwargs.values()):
        return None
    if not _is_plain(module):
        return None
    if type(module) is nn.MultiheadAttention:
        alike = len(args) == 3 and args[0] is args[1] is args[2] and kwargs.get("need_weights") is False
        return (lambda: (attention(module, args[0]), None)) if alike else None
    return (lambda: write(module, args[0])) if len(args) == 1 else None


def _is_plain(module: nn.Module) -> bool:
    """Whether every attention in it has one projection for query, key and value, and nothing added to the keys."""
    inside = [m for m in module.modules() if isinstance(m, nn.MultiheadAttention)]
    return all(m._qkv_same_embed_dim and m.bias_k is None and m.bias_v is None and not m.add_zero_attn for m in inside)


def attention(m: Any, x: Any) -> Any:
    """Self-attention over [batch, tokens, features], or [tokens, batch, features] without `batch_first`."""
    parts = F.linear(x, m.in_proj_weight, m.in_proj_bias).unflatten(-1, (3, m.num_heads, m.head_dim)).unbind(-3)
    order = (0, 2, 1, 3) if m.batch_first else (1, 2, 0, 3)
    back = (0, 2, 1, 3) if m.batch_first else (2, 0, 1, 3)
    q, k, v = (parts[i].permute(*order) for i in range(3))
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=m.dropout if m.training else 0.0)
    return m.out_proj(out.permute(*back).flatten(-2))


def turned_dropout(x: Tensor, rate: float) -> Tensor:
    """Dropout of [batch, tokens, features] as nn.MultiheadAttention gives them: token after token in memory."""
    return x * F.dropout(torch.ones_like(x.transpose(0, 1).contiguous()), rate).transpose(0, 1)


torch.fx.wrap("turned_dropout")


def encoder_layer(m: Any, x: Any) -> Any:
    """Attention and two linear layers, each with a residual; the norm before or after."""

    def attend(y: Any) -> Any:
        y = attention(m.self_attn, y)
        turned = m.self_attn.batch_first and m.training and m.dropout1.p > 0
        return turned_dropout(y, m.dropout1.p) if turned else m.dropout1(y)

    def feed(y: Any) -> Any:
        return m.dropout2(m.linear2(m.dropout(m.activation(m.linear1(y)))))

    if m.norm_first:
        x = x + attend(m.norm1(x))
        return x + feed(m.norm2(x))
    x = m.norm1(x + attend(x))
    return m.norm2(x + feed(x))


def encoder(m: Any, x: Any) -> Any:
    for layer in m.layers:
        x = layer(x)
    return x if m.norm is None else m.norm(x)


WAYS: dict[type, Callable[[Any, Any], Any]] = {
    nn.TransformerEncoder: encoder,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.MultiheadAttention: attention,
}
