"""The step of decodes with keys at creditors that share mailboxes as one graph, exchange and all."""

from __future__ import annotations

from torch import Tensor

from distkv.engine.model.decoder import Model
from distkv.engine.step.graphs.exchange_tensors import ExchangeTensors


class CapturedByMail:
    """Of a model over some tensors; results: what `Model.likeliest` finds of `size` rows. Raises RuntimeError when it
    cannot be captured."""

    def __init__(self, model: Model, tensors: ExchangeTensors, group: int) -> None:
        """group: of captured graphs that share memory, see Device.capture."""
        self._model, self.tensors = model, tensors
        self._run()  # nobody is asked
        self.captured = model.device.capture(self._run, group)

    def _run(self) -> tuple[Tensor, ...]:
        model, tensors, backend = self._model, self.tensors, self._model.device.backend
        x, qkv = tensors.begin()
        last = model.config.num_layers - 1
        for layer in range(last + 1):
            q = tensors.store(layer, qkv)
            backend.post_all(tensors.mail, layer, q)
            tensors.attend(layer, q)
            backend.take_all(tensors.mail, layer, *tensors.staged)
            tensors.merge()
            if layer < last:
                x, qkv = model.advance(layer, x, tensors.attended, qkv)
        return model.likeliest(model.end(x, tensors.attended))
