"""Thirty varied prompts: English, Chinese, code, one token, 1 500 tokens."""

from services.modelfiles.tokenizer import Tokenizer

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "Water boils at",
    "The three primary colours are red,",
    "To make a good cup of tea, first",
    "Dear Sir or Madam,\n\nI am writing to",
    "The difference between a virus and a bacterium is that",
    "Q: What is 12 + 30?\nA:",
    "List of planets:\n1. Mercury\n2. Venus\n3.",
    "She opened the door and saw",
    "今天天气很好，我们",
    "中国的首都是",
    "机器学习是一种",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "import numpy as np\n\ndef mean(values):\n",
    "SELECT name, age FROM users WHERE",
    "<html>\n<head>\n<title>",
    "for (int i = 0; i < n; i++) {\n",
    '{"name": "Ada", "born": 1815, "field": ',
    "L'été dernier, nous avons",
    "Der schnelle braune Fuchs",
    "🙂 🙃 😀",
    "1234567890 1234567890 12345",
    "    \n\n\t\tindented",
    "ROMEO: But soft! What light through yonder window breaks?\nJULIET:",
    "The mitochondria is the powerhouse of the cell. It",
)
PARAGRAPH = (
    "The lighthouse keeper wrote every evening in a thick grey book. He noted the wind, the height of the waves, and "
    "the names of the ships that passed. On some evenings he wrote only the date, for the fog hid the whole world. "
)


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of all thirty."""
    short = [tokenizer.encode(text, allow_special=False) for text in TEXTS]
    long = tokenizer.encode(PARAGRAPH * 40, allow_special=False)
    return [*short, short[0][:1], long[:160], long[7:487], long[:1500]]
