"""`LLM`: batches on this machine without a server, as with vLLM's class of that name."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from distkv.client.async_client import MAX_AT_ONCE
from distkv.client.instances.capacity import are_live, longest_request
from distkv.client.local.cluster import LocalCluster
from distkv.client.prompts import check_n, check_params, each_prompt
from distkv.config import ControlSettings, GatewayConfig, build, model_dir
from distkv.errors import InvalidParams, RequestFailed
from distkv.gateway.prompting.served_model import ServedModel
from distkv.offline.outputs import PromptOutput, prompt_output
from distkv.offline.progress import UseTqdm, progress
from distkv.offline.prompts import (
    Conversation,
    Messages,
    Prompt,
    PromptReader,
    ReadPrompt,
    each_conversation,
)
from distkv.text.chat_template import ChatTemplate
from distkv.text.tokenizer import Tokenizer
from distkv.types import SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None
RETRIES = 3
"""Of a request that was lost with its instance, where others can begin it anew."""


class LLM:
    """A model on this machine that answers batches of prompts: a LocalCluster of `instances` instances whose KV memory
    is one pool, without HTTP.

    model, kv_tokens, dtype, threads and `settings` are those of LocalCluster; settings of an instance have vLLM's names
    where vLLM has them (`max_model_len`, `max_num_seqs`, `gpu_memory_utilization`). chat_template: a file with one, in
    place of the model's own. generation_config: "none" ignores the model's sampling defaults.

    Its processes end with `close`, with the `with` block, when nothing refers to it any more, and with this process.
    It works in any thread, also in a notebook. Raises ConfigError, CheckpointError, StartupFailed.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        instances: int = 1,
        kv_tokens: int | Sequence[int] | None = None,
        dtype: str = "auto",
        threads: int | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        generation_config: str = "auto",
        **settings: Any,
    ) -> None:
        read = {"model": os.fspath(model), "generation_config": generation_config}
        template = {} if chat_template is None else {"chat_template": os.fspath(chat_template)}
        self._model = ServedModel.load(build(GatewayConfig, read | template))
        self._dir = model_dir(os.fspath(model))
        self._cluster = LocalCluster(model, instances, kv_tokens, dtype, threads, gateway=False, **settings)
        self._client = self._cluster.client()
        self._finalizer = weakref.finalize(self, LocalCluster.close, self._cluster)
        sequences: int = settings.get("max_num_seqs", ControlSettings().max_num_seqs)
        # Twice what the instances compute at a time: who ends is followed at once.
        self._at_once = max(MAX_AT_ONCE, 2 * instances * sequences)
        self._numbers = itertools.count()

    @property
    def cluster(self) -> LocalCluster:
        """What it runs on: its status, and clients for other things."""
        return self._cluster

    def get_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None if it has none."""
        return self._model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Those of a call that names none: of the model's generation_config.json."""
        return SamplingParams(**self._model.defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        n: int = 1,
        use_tqdm: UseTqdm = True,
    ) -> list[PromptOutput]:
        """The outputs of one or many prompts, in their order.

        A prompt is a text, a list of token ids, or {"prompt": text} or {"prompt_token_ids": ids}. sampling_params: for
        all or one each. n: outputs of each prompt; with a seed, output i has seed + i. use_tqdm: whether a bar shows
        how far it is, or what makes one with tqdm's parameters. Output ends with "length" at the longest request that
        the cluster takes, so `max_tokens=None` is as many as fit.

        Prompts are read before anything is computed: one that cannot be served, or params out of range, raise a
        ValueError (RequestRefused, InvalidParams) or TypeError that names it. A request that is lost with its instance
        is begun anew; one that fails ends the others, and raises RequestFailed.
        """
        reader = self._reader()
        reads = [partial(reader.prompt, one) for one in each_prompt(prompts)]
        return self._run(reader, reads, sampling_params, n, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Params = None,
        *,
        n: int = 1,
        use_tqdm: UseTqdm = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[PromptOutput]:
        """The same for one conversation, a list of messages, or for a list of them; errors are those of `generate`.

        chat_template: Jinja in place of the model's. continue_final_message: the output goes on with the last message;
        needs add_generation_prompt=False. tools, chat_template_kwargs: for the template.
        """
        how = Conversation(add_generation_prompt, continue_final_message, chat_template_kwargs, tools)
        reader = self._reader(chat_template)
        reads = [partial(reader.conversation, one, how) for one in each_conversation(messages)]
        return self._run(reader, reads, sampling_params, n, use_tqdm)

    def close(self) -> None:
        """End its processes; safe to call twice."""
        if self._finalizer.alive:
            self._cluster.close()
            self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reader(self, chat_template: str | None = None) -> PromptReader:
        model = self._model
        if chat_template is not None:
            model = replace(model, template=ChatTemplate.of_text(self._dir, chat_template), tool_template=None)
        most = longest_request(are_live(self._client.members()))
        if not most:
            with self._cluster.noting_deaths():
                raise RequestFailed(True, "no instance is left to serve requests")
        return PromptReader(model, most)

    def _run(
        self,
        reader: PromptReader,
        reads: Sequence[Callable[[], ReadPrompt]],
        sampling_params: Params,
        n: int,
        use_tqdm: UseTqdm,
    ) -> list[PromptOutput]:
        check_n(n)
        each = self._each_params(sampling_params, len(reads))
        prompts, params = [], []
        for index, (read, one) in enumerate(zip(reads, each, strict=True)):
            try:
                prompts.append(read())
                params.append(reader.fitted(prompts[-1], check_params(one, fits=True)))
            except (ValueError, TypeError) as error:
                if len(reads) > 1:
                    error.add_note(f"prompt {index} of {len(reads)}")
                raise
        with self._cluster.noting_deaths(), progress(use_tqdm, n * len(prompts)) as on_output:
            found = self._client.generate(
                [prompt.token_ids for prompt in prompts],
                params,
                n=n,
                at_once=self._at_once,
                on_output=on_output,
                retries=RETRIES,
            )
        return [
            prompt_output(
                str(next(self._numbers)), text, token_ids, found[index * n : index * n + n], self._model.tokenizer
            )
            for index, (text, token_ids) in enumerate(prompts)
        ]

    def _each_params(self, params: Params, count: int) -> Sequence[SamplingParams]:
        if params is None:
            params = self.get_default_sampling_params()
        if not isinstance(params, Sequence):
            return [params] * count
        if len(params) != count:
            raise InvalidParams("sampling_params", f"one for all or one for each of {count} prompts", len(params))
        return params
