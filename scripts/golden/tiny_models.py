"""Golden cases of the embedded models on the project's own text."""

from tokenizers import Tokenizer
from transformers import AutoTokenizer

import forward
import texts

MODELS = ["tiny-16m", "tiny-2m"]
LENGTHS = [1, 2, 17, 64, 257, 1000, 4096, 12000]
N_TOP = 20
N_GREEDY = 64
QUESTION = "\n\nQuestion: {}\nAnswer:"


def tokenizer_cases(folder):
    """Ids from transformers, which must agree with the tokenizers library reading the same file."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    cases = []
    for text in texts.TOKENIZER:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if ids != plain.encode(text, add_special_tokens=False).ids:
            raise SystemExit(f"transformers and tokenizers disagree on {text!r}")
        cases.append({
            "text": text,
            "ids": ids,
            "ids_with_bos": tokenizer.encode(text),
            "decoded": tokenizer.decode(ids, clean_up_tokenization_spaces=False),
        })
    return cases


def chat_cases(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    cases = []
    for messages in texts.CHATS:
        for generation_prompt in (False, True):
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generation_prompt)
            cases.append({
                "messages": messages,
                "add_generation_prompt": generation_prompt,
                "text": text,
                "ids": tokenizer.encode(text, add_special_tokens=False),
            })
    return cases


def prose_ids(folder, document):
    """BOS and the document, begun again until the longest length is filled."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode(document)
    again = tokenizer.encode("\n\n" + document, add_special_tokens=False)
    while len(ids) < LENGTHS[-1]:
        ids += again
    return ids[:LENGTHS[-1]]


def logits_cases(name, model, ids):
    cases = []
    for length in LENGTHS:
        logits = forward.logits_of(model, ids[:length])
        top = logits[-1].topk(N_TOP)
        cases.append({
            "model": name,
            "length": length,
            "top20_ids": top.indices.tolist(),
            "top20_logits": forward.numbers(top.values),
            "logsumexp": logits[-1].double().logsumexp(0).item(),
            "mean_nll": forward.mean_nll(logits, ids[:length]),
        })
    return cases


def greedy_cases(name, model, folder, document, questions):
    """Short prompts, a chat, the middle of the document, and two questions about all of it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = tokenizer.apply_chat_template(texts.CHATS[1], tokenize=False, add_generation_prompt=True)
    prompts = [tokenizer.encode(text) for text in texts.PROMPTS]
    prompts.append(tokenizer.encode(chat, add_special_tokens=False))
    prompts.append(tokenizer.encode(document)[:1500])
    prompts += [tokenizer.encode(document + QUESTION.format(q)) for q in questions[:2]]
    cases = []
    for ids in prompts:
        tokens, gaps = forward.greedy(model, ids, N_GREEDY)
        cases.append({
            "model": name,
            "prompt_ids": ids,
            "greedy_ids": tokens,
            "top1_minus_top2": gaps,
            "text": tokenizer.decode(tokens, clean_up_tokenization_spaces=False),
        })
    return cases


def build(models, demo):
    """{file name: content} for the two embedded models; they share one tokenizer."""
    document = (demo / "lighthouse-logbook.txt").read_text()
    questions = (demo / "questions.txt").read_text().splitlines()
    ids = prose_ids(models / MODELS[0], document)
    logits, greedy = [], []
    for name in MODELS:
        model = forward.load(models / name, "sdpa")  # eager would hold [6, 12000, 12000] scores
        logits += logits_cases(name, model, ids)
        greedy += greedy_cases(name, model, models / name, document, questions)
    return {
        "tokenizer.json": tokenizer_cases(models / MODELS[0]),
        "chat.json": chat_cases(models / MODELS[0]),
        "logits.json": {"ids": ids, "cases": logits},
        "greedy.json": greedy,
    }
