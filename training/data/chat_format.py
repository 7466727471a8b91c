r"""Turns instructions and chats into tokens, and marks the tokens that are trained on.

A chat becomes ChatML, as in chatml.md of OpenAI's openai-python. Only the underlined tokens count
in the loss:

    <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>
                                                          ~~~~~~~~~~~~~~~~

The end token is the first of `TURN_ENDS` that the tokenizer has. <|im_start|> is one token if the
tokenizer has it, otherwise plain text. The token that the tokenizer's post-processor puts before
a text (<s>, <|begin_of_text|>) is put before each conversation.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from training.data.tokenizer import OpenedTokenizer
from training.errors import IncompatibleConfig

# Tokens that can end an answer. Tokens made for this purpose come first.
TURN_ENDS = (
    "<|im_end|>",  # ChatML: Qwen, SmolLM, OLMo
    "<|eot_id|>",  # Llama 3
    "<end_of_turn>",  # Gemma
    "<|end|>",  # Phi
    "</s>",  # Llama 2, Mistral
    "<|end_of_text|>",
    "<|endoftext|>",
    "<eos>",
)

TURN_START = "<|im_start|>"

# The prompts of Stanford Alpaca, word for word (Apache-2.0): PROMPT_DICT in train.py of
# github.com/tatsu-lab/stanford_alpaca
ALPACA_PROMPT_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)
ALPACA_PROMPT = (
    "Below is an instruction that describes a task. Write a response that appropriately "
    "completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:"
)


class Segment(NamedTuple):
    """A stretch of a conversation: text or one token id, and whether it counts in the loss."""

    content: str | int
    is_counted: bool


class ChatTokenizer:
    """A tokenizer together with the template for chats and instructions.

    Attributes:
        digest: sha256 of its files, in hex, as in a manifest.
        vocab_size: highest id plus one.
        start: token before each conversation, or None.
        end, end_id: token that ends an answer.
    """

    def __init__(self, opened: OpenedTokenizer) -> None:
        """Prepare a tokenizer, whose settings are changed, for conversations.

        Raises:
            IncompatibleConfig: it has no token that can end an answer.
        """
        self._tokenizer = opened.tokenizer
        self.digest, self.vocab_size = opened.sha256, opened.vocab_size
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        end = next((token for token in TURN_ENDS if token in vocabulary), None)
        if end is None:
            raise IncompatibleConfig(
                f"data.tokenizer: {opened.path} has none of the tokens that can end an answer: "
                f"{', '.join(TURN_ENDS)}; add one to it, with an id below model.vocab_size"
            )
        self.end, self.end_id = end, vocabulary[end]
        self._turn_start: str | int = vocabulary.get(TURN_START, TURN_START)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Encode one letter to find the special tokens that the post-processor puts before it.
        probe = self._tokenizer.encode("a", add_special_tokens=True)
        # The mask is 1 for special tokens. If all tokens are special, the appended 0 is found.
        num_before = [*probe.special_tokens_mask, 0].index(0)
        self._start_ids: list[int] = probe.ids[:num_before]
        self.start: str | None = probe.tokens[0] if num_before else None
        # From here on, a text that looks like a special token is encoded as text. Otherwise a
        # user could end a turn by writing its end token.
        self._tokenizer.encode_special_tokens = True

    def format_chat(self, messages: Sequence[tuple[str, str]]) -> list[Segment]:
        """Return the segments of a chat up to its last answer.

        Args:
            messages: (role, content); at least one role is "assistant".
        """
        segments: list[Segment] = []
        # Messages after the last answer would take room in the row and add nothing to the loss.
        last_answer = max(i for i, (role, _) in enumerate(messages) if role == "assistant")
        for index, (role, content) in enumerate(messages[: last_answer + 1]):
            is_answer = role == "assistant"
            if index:
                segments.append(Segment("\n", is_counted=False))
            segments.append(Segment(self._turn_start, is_counted=False))
            segments.append(Segment(f"{role}\n", is_counted=False))
            segments.append(Segment(content, is_answer))
            # The end token of an answer counts in the loss: the model must learn to stop.
            segments.append(Segment(self.end_id, is_answer))
        return segments

    def format_instruction(
        self, instruction: str, input_text: str, output: str
    ) -> list[Segment]:
        """Return the segments of an instruction and its answer; `input_text` may be empty."""
        template = ALPACA_PROMPT_WITH_INPUT if input_text else ALPACA_PROMPT
        prompt = template.format(instruction=instruction, input=input_text)
        return [
            Segment(prompt, is_counted=False),
            Segment(output, is_counted=True),
            Segment(self.end_id, is_counted=True),
        ]

    @property
    def chat_template(self) -> str:
        """The chat format as a Jinja template for tokenizer_config.json."""
        start = f"{{{{ {json.dumps(self.start)} }}}}" if self.start else ""
        return (
            f"{start}{{% for message in messages %}}"
            f"{{{{ {json.dumps(TURN_START)} + message['role'] + '\\n' + "
            f"message['content'] + {json.dumps(self.end)} + '\\n' }}}}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}"
            f"{{{{ {json.dumps(TURN_START + 'assistant')} + '\\n' }}}}{{% endif %}}"
        )

    def encode(
        self, conversations: Sequence[Sequence[Segment]]
    ) -> Iterator[tuple[list[int], list[bool]]]:
        """Yield the ids of each conversation, and for each id whether it counts in the loss.

        Neighbouring texts are joined before they are encoded, so that tokens can cross them.
        """
        joined = [list(_join_texts(segments)) for segments in conversations]
        # One call for the texts of all conversations: the library encodes a batch in parallel.
        texts: list[str] = []
        for segments in joined:
            texts += [s.content for s in segments if isinstance(s.content, str)]
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        for segments in joined:
            ids, is_counted = [*self._start_ids], [False] * len(self._start_ids)
            for segment in segments:
                content = segment.content
                # Encoded texts have the order of `texts`. A token id needs no encoding.
                segment_ids = next(encoded).ids if isinstance(content, str) else [content]
                ids += segment_ids
                is_counted += [segment.is_counted] * len(segment_ids)
            yield ids, is_counted


def _join_texts(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Join neighbouring texts that both count, or both do not."""

    def group_key(segment: Segment) -> tuple[bool, bool]:
        return isinstance(segment.content, str), segment.is_counted

    for (is_text, is_counted), group in itertools.groupby(segments, group_key):
        if is_text:
            yield Segment("".join(str(segment.content) for segment in group), is_counted)
        else:
            yield from group
