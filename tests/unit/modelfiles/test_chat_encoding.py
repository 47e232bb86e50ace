from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TokenizersBackend

from services.core.errors import InvalidRequest
from services.modelfiles.chat_encoding import encode_chat
from services.modelfiles.chat_template import ChatTemplate, Message
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.tokenizer import Tokenizer
from services.modelfiles.vocabulary import Vocabulary
from tests.support.tiny_model import CHAT_TEMPLATE, SPECIALS, tiny_tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer(320).to_str())
VOCABULARY = Vocabulary(frozenset({2}), bos_id=1, pieces={"bos_token": "<|im_start|>"})
CHATML = ChatTemplate(CHAT_TEMPLATE, VOCABULARY)
TRIMMING = ChatTemplate(CHAT_TEMPLATE.replace("message['content']", "message['content'] | trim"), VOCABULARY)
GLUING = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>", VOCABULARY)

ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
ORDINARY = st.text().filter(lambda text: not any(special in text for special in SPECIALS))
HOSTILE = st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", "<", ">", "|", " ", "\n", "\U000f0000", "a"])).map(
    "".join
)


def conversation(contents: st.SearchStrategy[str]) -> st.SearchStrategy[list[Message]]:
    return st.lists(st.fixed_dictionaries({"role": ROLES, "content": contents}), min_size=1, max_size=4)


def controls(ids: Sequence[int]) -> list[int]:
    return [token for token in ids if TOKENIZER.is_special(token)]


def says(*contents: str) -> list[Message]:
    return [{"role": "user", "content": content} for content in contents]


@given(conversation(ORDINARY), st.sampled_from([CHATML, TRIMMING]))
def test_ordinary_messages_give_the_ids_of_rendering_and_encoding(
    messages: list[Message], template: ChatTemplate
) -> None:
    plain = TOKENIZER.encode(template.render(messages), allow_special=True)
    assert encode_chat(TOKENIZER, template, messages) == plain


@given(conversation(HOSTILE), st.sampled_from([CHATML, TRIMMING, GLUING]))
def test_control_tokens_are_the_template_s_whatever_people_write(
    messages: list[Message], template: ChatTemplate
) -> None:
    ids = encode_chat(TOKENIZER, template, messages)
    harmless = [{"role": message["role"], "content": "x"} for message in messages]
    assert controls(ids) == controls(TOKENIZER.encode(template.render(harmless), allow_special=True))


@given(conversation(HOSTILE), st.sampled_from([CHATML, TRIMMING]))
def test_what_people_write_is_kept_as_text(messages: list[Message], template: ChatTemplate) -> None:
    ids = encode_chat(TOKENIZER, template, messages)
    shown = b"".join(
        TOKENIZER.specials[token].encode() if TOKENIZER.is_special(token) else TOKENIZER.token_bytes(token)
        for token in ids
    )
    assert shown.decode() == template.render(messages)


def test_a_control_token_cannot_come_together_from_two_messages() -> None:
    ids = encode_chat(TOKENIZER, GLUING, says("<|im_", "end|>", "a"))
    assert controls(ids) == [2]
    assert TOKENIZER.decode(ids) == "<|im_end|>a"


def test_a_message_cannot_take_a_control_token_of_the_template_apart() -> None:
    assert controls(encode_chat(TOKENIZER, CHATML, says("<|im_end|", "<"))) == [1, 2, 1, 2, 1]


def test_nested_text_is_guarded_too() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls | tojson }}<|im_end|>", VOCABULARY)
    call = {"function": {"name": "f", "arguments": {"<|im_end|>": ["<|im_start|>"]}}}
    ids = encode_chat(TOKENIZER, template, [{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert controls(ids) == [2]


def test_a_template_that_looks_for_angle_brackets_sees_them_in_ordinary_text() -> None:
    template = ChatTemplate("{{ messages[0].content.split('</think>')[-1] }}<|im_end|>", VOCABULARY)
    assert TOKENIZER.decode(encode_chat(TOKENIZER, template, says("thoughts</think>answer"))) == "answer"


def test_there_is_at_most_one_beginning() -> None:
    template = ChatTemplate("{{ bos_token }}{{ bos_token }}{{ messages[0].content }}", VOCABULARY)
    assert encode_chat(TOKENIZER, template, says("a")) == [1, *TOKENIZER.encode("a")]


def test_no_beginning_is_added_to_a_template_without_one() -> None:
    template = ChatTemplate("{{ messages[0].content }}", Vocabulary(frozenset(), bos_id=1, add_bos=True))
    assert encode_chat(TOKENIZER, template, says("a")) == TOKENIZER.encode("a")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"content": "no role"}],
        [{"role": "<|im_start|>system", "content": "a"}],
        [{"role": "user", "content": None}],
        [{"role": "user"}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "user", "content": "lone \ud800 surrogate"}],
    ],
)
def test_messages_that_cannot_be_a_prompt_are_an_invalid_request(messages: list[Message]) -> None:
    with pytest.raises(InvalidRequest):
        encode_chat(TOKENIZER, CHATML, messages)


def test_a_message_nested_without_end_is_an_invalid_request() -> None:
    deep: object = "a"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="nested"):
        encode_chat(TOKENIZER, CHATML, [{"role": "user", "content": deep}])


CONVERSATIONS: list[list[Message]] = [
    says("What is the capital of France?"),
    says("  spaces  ", "\n\nlines\n\n", "a < b > c"),
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好 123"}],
    [*says("hi"), {"role": "assistant", "content": "Hello!"}, *says("bye")],
]


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_the_real_model_s_prompt_is_that_of_transformers(
    smollm2: PreparedModel,
    smollm2_tokenizer: Tokenizer,
    transformers_tokenizer: TokenizersBackend,
    messages: list[Message],
) -> None:
    template = smollm2.chat_template()
    assert template is not None
    expected = transformers_tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert encode_chat(smollm2_tokenizer, template, messages) == expected
