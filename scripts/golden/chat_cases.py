"""Chats, tools and documents of the chat templates, and the variables that each template takes."""

from pathlib import Path

TEMPLATES = Path(__file__).resolve().parent / "templates"


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def call(name, arguments, call_id):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


CHATS = {
    "user": [user("Is the lamp lit?")],
    "system": [system("You keep a lighthouse. Be brief."), user("Is the lamp lit?")],
    "turns": [user("How many steps are there?"), assistant("One hundred and sixty-eight."),
              user("And the threshold?")],
    "system turns": [system(" Be brief. "), user("How many steps?"), assistant("168."), user(" And the ship? "),
                     assistant("It passed at four."), user("Which way?")],
    "spaces": [user("  \n leading and trailing\t\n\n"), assistant("\n an answer \n"), user("a\r\nb \u00a0")],
    "empty": [system(""), user(""), assistant(""), user("!")],
    "unicode": [system("灯台の光 \U0001f6a2"), user("Ça va, naïve café? \U0001f469\u200d\U0001f680 \"quoted\" <b>&amp;</b> 'x'"),
                assistant("Да — «маяк»\u2026"), user("한국어\u3000\U0001f30a\n\\n \\ /")],
    "reasoning": [user("2 + 2?"), assistant("4", reasoning_content="\nTwo and two.\n"), user("3 + 3?"),
                  assistant("6", reasoning_content="Three and three.")],
    "think": [user("2 + 2?"), assistant("<think>\nTwo and two.\n</think>\n\n4"), user("3 + 3?"),
              assistant("<think>\nThree and three.\n</think>\n\n6\n")],
    "answer": [system("Be brief. /no_think"), user("Is the lamp lit?"), assistant("Yes, it is")],
    "two users": [user("Is the lamp lit?"), user("Hello?")],
    "assistant first": [assistant("Good evening."), user("Good evening.")],
    "late system": [user("Is the lamp lit?"), system("Answer in French."), assistant("Oui."), user("Merci.")],
    "other role": [user("Is the lamp lit?"), {"role": "observer", "content": "It is dark."}],
    "parts": [system("Be brief."),
              user([{"type": "text", "text": " What is "}, {"type": "image"}, {"type": "text", "text": "this? "}]),
              assistant([{"type": "text", "text": "A lamp."}]), user([{"type": "text", "text": "Thanks."}])],
    "call": [system("Use the tools."), user("How high is the tide at Bergen?"),
             {"role": "assistant", "content": "", "tool_calls": [
                 call("tide", {"port": "Bergen", "hours": 6, "exact": True, "levels": [0.5, 1.0], "note": None}, "a1B2c3D4e")]},
             {"role": "tool", "name": "tide", "tool_call_id": "a1B2c3D4e", "content": "{\"metres\": 1.25}"},
             assistant("It is 1.25 m."), user("And at Oslo?")],
    "calls": [user("Compare Bergen with Tromsø."),
              {"role": "assistant", "content": None, "reasoning_content": "Two ports, two calls.", "tool_calls": [
                  call("tide", "{\"port\": \"Bergen\"}", "call_0001"), call("tide", "{\"port\": \"Tromsø\"}", "call_0002")]},
              {"role": "tool", "tool_call_id": "call_0001", "content": "1.25"},
              {"role": "tool", "tool_call_id": "call_0002", "content": "0.8 <m>"}],
}

TOOLS = [
    {"type": "function", "function": {
        "name": "tide",
        "description": "Gives the height of the tide, \"as measured\".",
        "parameters": {
            "type": "object",
            "properties": {
                "port": {"type": "string", "description": "Name of the port, e.g. Tromsø"},
                "hours": {"type": "integer", "description": "Hours from now", "default": 6},
                "exact": {"type": "boolean"},
                "levels": {"type": "array", "items": {"type": "number"}, "description": "Levels to compare with"},
                "unit": {"type": "string", "enum": ["m", "ft"], "default": "m", "description": "Unit <of length>"},
            },
            "required": ["port"],
        },
    }},
    {"type": "function", "function": {
        "name": "log_ship",
        "description": "Writes a ship into the logbook.",
        "parameters": {
            "type": "object",
            "properties": {
                "ship": {"type": "object", "description": "The ship",
                         "properties": {"name": {"type": "string"}, "flag": {"type": ["string", "null"]}},
                         "required": ["name"]},
                "speeds": {"type": "array", "items": {"type": "object", "properties": {}}},
                "when": {"oneOf": [{"type": "string", "description": "ISO time"}, {"type": "integer", "default": 0}]},
            },
            "required": ["ship", "when"],
            "additionalProperties": False,
        },
        "strict": True,
    }},
    {"type": "function", "function": {
        "name": "now", "description": "Tells the time.", "parameters": {"type": "object", "properties": {}}}},
]

DOCUMENTS = [
    {"title": "Logbook", "text": "The lamp was lit at ten minutes to four.\nWind from the north."},
    {"title": "Carte «marée»", "text": "Tide at Bergen: 1.25 m & rising.", "year": 1931},
]

TINY = ("<|begin_of_text|>", "<|end_of_text|>")
SENTENCEPIECE = ("<s>", "</s>")
NO_BOS = (None, "<|im_end|>")

# Tokens of a template, and further variables: each set gives more cases.
SETTINGS = {
    "alpaca": (SENTENCEPIECE, []),
    "chatml-generation": (NO_BOS, []),
    "command-r": (("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"), []),
    "command-r-rag": (("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"), []),
    "dbrx": ((None, "<|endoftext|>"), []),
    "deepseek-coder": (("<｜begin▁of▁sentence｜>", "<|EOT|>"), []),
    "deepseek-r1-distill": (("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"), []),
    "exaone": (("[BOS]", "[|endofturn|]"), []),
    "gemma": (("<bos>", "<eos>"), []),
    "gemma-3": (("<bos>", "<eos>"), []),
    "glm-4.5": ((None, "<|endoftext|>"), [{"enable_thinking": False}, {"enable_thinking": True}]),
    "gpt-oss": (("<|startoftext|>", "<|return|>"), [
        {"reasoning_effort": "high", "model_identity": "You keep a lighthouse."},
        {"builtin_tools": ["python", "browser"]}]),
    "granite-3": ((None, "<|end_of_text|>"), [
        {"thinking": True}, {"controls": {"length": "long", "originality": "abstractive"}}, {"controls": ["citations"]}]),
    "llama-3.1-tools": (TINY, [
        {"tools_in_user_message": False, "date_string": "1 January 2025"},
        {"builtin_tools": ["brave_search", "code_interpreter", "tide"]},
        {"custom_tools": [{"name": "ring", "parameters": {}}], "tools_in_user_message": True}]),
    "llama-3.2-date": (TINY, [{"date_string": "1 Jan 2025"}]),
    "mistral-v7": (SENTENCEPIECE, []),
    "qwen3": (NO_BOS, [{"enable_thinking": False}, {"enable_thinking": True}]),
    "seed-oss": (("<seed:bos>", "<seed:eos>"), [{"thinking_budget": 0}, {"thinking_budget": 600}, {"thinking_budget": 5000}]),
    "smollm3": (NO_BOS, [{"enable_thinking": False},
                         {"xml_tools": ["one", {"two": [2.0, None, True]}], "python_tools": ["def f(x): ..."]}]),
} | dict.fromkeys(["zephyr", "vicuna", "openchat", "mistral-v1", "mistral-v1-system", "mistral-v3-tools",
                   "mistral-tekken", "internlm-tools", "llama-2-blocks", "minicpm"], (SENTENCEPIECE, [])) \
  | dict.fromkeys(["phi-3", "phi-4-mini"], (("<s>", "<|endoftext|>"), [])) \
  | dict.fromkeys(["phi-4", "falcon", "solar", "yi", "mpt", "nemotron", "glm-4", "hermes-tools", "qwen2.5-tools",
                   "qwen3-always-thinking", "qwen3-coder-xml"], (NO_BOS, []))

DOCUMENT_READERS = ["command-r-rag", "granite-3", "edge-json", "edge-print"]
WITH_IDS = ["system turns", "unicode"]


def template_text(path):
    """Files named *-crlf hold LF so that no tool rewrites them."""
    text = path.read_text(encoding="utf-8")
    return text.replace("\n", "\r\n") if path.stem.endswith("-crlf") else text


def cases_of(name, template):
    """(chat, add_generation_prompt, tools, documents, variables) of each case of a template."""
    _, variable_sets = settings_of(name)
    for chat, messages in CHATS.items():
        answered = messages[-1]["role"] == "assistant"
        yield chat, not answered, False, False, {}
        if chat in ("system turns", "reasoning"):
            yield chat, answered, False, False, {}
        if "tools" in template and chat in ("user", "system", "call", "calls"):
            yield chat, True, True, False, {}
        if name in DOCUMENT_READERS and chat in ("user", "system turns"):
            yield chat, True, False, True, {}
            yield chat, True, True, True, {}
        for variables in variable_sets:
            if chat in ("user", "answer", "call"):
                yield chat, not answered, chat == "call", "documents" in template and chat == "user", variables


def settings_of(name):
    return SETTINGS.get(name, (TINY, []))
