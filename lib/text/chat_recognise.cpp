#include "base/error.h"
#include "io/json.h"
#include "text/chat_template.h"
#include "text/regex.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace tandem::text {
namespace {

constexpr const char* kRemedy =
    "supported chat templates: llama-2, llama-3, chatml, mistral; for another one write the whole "
    "prompt yourself and pass it with --prompt, or its ids with --prompt-ids";

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// What the escapes of a Jinja string literal stand for.
std::string unescape(std::string_view literal) {
  std::string out;
  for (size_t i = 0; i < literal.size(); ++i) {
    if (literal[i] != '\\' || i + 1 == literal.size()) {
      out += literal[i];
      continue;
    }
    const char c = literal[++i];
    out += c == 'n' ? '\n' : c == 't' ? '\t' : c;
  }
  return out;
}

void read_llama_3(ChatTemplate& form, std::string_view jinja, const std::string& where) {
  form.begins_with_bos = has(jinja, "bos_token");
  if (!has(jinja, "Cutting Knowledge Date")) return;
  const auto knowledge = capture(R"(Cutting Knowledge Date: ([A-Za-z]+ \d+))", jinja);
  const auto today = capture(R"re(date_string\s*=\s*["']([^"']+)["'])re", jinja);
  if (!knowledge || !today)
    throw input_error(where, "a llama-3 chat template whose dates are written in an unknown way")
        .hint(kRemedy);
  form.knowledge_date = (*knowledge)[1];
  form.today = (*today)[1];
}

/// A template without what may be written in several ways: no white space outside literals, single
/// quotes, line breaks as escapes, and no marks that trim white space around a tag.
std::string canonical(std::string_view jinja) {
  std::string out;
  char quote = 0;  // of the literal that is being read
  for (size_t i = 0; i < jinja.size(); ++i) {
    const char c = jinja[i];
    if (quote == 0) {
      const bool trims = c == '-' && (out.ends_with("{%") || out.ends_with("{{") ||
                                      jinja.substr(i + 1).starts_with("%}") ||
                                      jinja.substr(i + 1).starts_with("}}"));
      if (trims || c == ' ' || c == '\n' || c == '\t' || c == '\r') continue;
      if (c == '\'' || c == '"') quote = c;
      out += quote != 0 ? '\'' : c;
    } else if (c == '\\' && i + 1 < jinja.size()) {
      out += c;
      out += jinja[++i];
    } else if (c == quote) {
      quote = 0;
      out += '\'';
    } else if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

constexpr const char* kEmptyThought = "<think>\n\n</think>\n\n";

/// Reasoning as Qwen3 writes it: all that decides the text must be there as it is known. The ends
/// are those of Qwen3, of its models that always think, and of those that never do.
Thinking read_thinking(std::string_view jinja, const std::string& where) {
  const std::string text = canonical(jinja);
  const auto throw_unless = [&](bool known) {
    if (!known)
      throw input_error(where, "a chatml template that rewrites reasoning in an unknown way")
          .hint(kRemedy);
  };
  for (const char* part :
       {R"(not(message.content.startswith('<tool_response>')and)"
        R"(message.content.endswith('</tool_response>')))",
        R"(ns.last_query_index=index)", R"(loop.index0>ns.last_query_index)",
        R"(loop.lastor(notloop.lastandreasoning_content))",
        R"(.split('</think>')[-1].lstrip('\n'))",
        R"(.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n'))",
        R"(+'\n<think>\n'+reasoning_content.strip('\n')+'\n</think>\n\n'+content.lstrip('\n'))"})
    throw_unless(has(text, part));
  const std::string begin = R"({%ifadd_generation_prompt%}{{'<|im_start|>assistant\n)";
  if (text.ends_with(begin + R"('}}{%ifenable_thinkingisdefinedandenable_thinkingisfalse%})"
                             R"({{'<think>\n\n</think>\n\n'}}{%endif%}{%endif%})"))
    return {.on = "", .off = kEmptyThought};
  throw_unless(!has(text, "enable_thinking"));
  if (text.ends_with(begin + R"(<think>\n'}}{%endif%})")) return {.on = "<think>\n", .off = {}};
  throw_unless(text.ends_with(begin + R"(<think>\n\n</think>\n\n'}}{%endif%})"));
  return {.on = {}, .off = kEmptyThought};
}

void read_chatml(ChatTemplate& form, std::string_view jinja, const std::string& where) {
  if (has(jinja, "<think>") || has(jinja, "reasoning_content"))
    form.thinking = read_thinking(jinja, where);
  form.begins_with_bos = has(jinja, "bos_token");
  const auto system =
      capture(R"re(<\|im_start\|>system(?:\\n|\n)((?:[^'"{}<\\]|\\.)+)<\|im_end\|>)re", jinja);
  if (system) form.default_system = unescape((*system)[1]);
}

void read_mistral(ChatTemplate& form, std::string_view jinja, const std::string& where) {
  // Releases differ in the spaces around the markers, so these are read as written.
  const auto open = capture(R"re(["'](\s*\[INST\]\s*)["'])re", jinja);
  const auto close = capture(R"re(["'](\s*\[/INST\]\s*)["'])re", jinja);
  const auto assistant = capture(
      R"re((?:["'](\s*)["']\s*\+\s*)?message\[["']content["']\]\s*(?:\|\s*(trim)\s*)?\+\s*eos_token)re"
      R"re((?:\s*\+\s*["'](\s*)["'])?)re",
      jinja);
  if (!open || !close || !assistant)
    throw input_error(where, "a mistral chat template in an unknown variant").hint(kRemedy);
  form.begins_with_bos = has(jinja, "bos_token");
  form.user_open = (*open)[1];
  form.user_close = (*close)[1];
  form.assistant_open = (*assistant)[1];
  form.trims_content = !(*assistant)[2].empty();
  form.assistant_close = (*assistant)[3];
  if (capture(R"(loop\.last\s+and\s+system_message)", jinja))
    form.system = ChatTemplate::System::last_user;
  else if (capture(R"(loop\.(first|index0 == 0)\s+and\s+system_message)", jinja))
    form.system = ChatTemplate::System::first_user;
}

ChatTemplate with_tokens(const Tokenizer& tokenizer) {
  ChatTemplate form;
  if (tokenizer.bos_id()) form.bos = tokenizer.token_bytes(*tokenizer.bos_id());
  if (tokenizer.eos_id()) form.eos = tokenizer.token_bytes(*tokenizer.eos_id());
  return form;
}

}  // namespace

ChatTemplate recognise_chat_template(std::string_view jinja, const Tokenizer& tokenizer,
                                     const std::string& where) {
  ChatTemplate form = with_tokens(tokenizer);
  form.always_prompts = !has(jinja, "add_generation_prompt");
  form.trims_content = capture(R"re(content["']?\]?\s*\|\s*trim)re", jinja).has_value();
  if (has(jinja, "<|start_header_id|>") && has(jinja, "<|eot_id|>")) {
    form.family = ChatFamily::llama_3;
    read_llama_3(form, jinja, where);
  } else if (has(jinja, "<|im_start|>") && has(jinja, "<|im_end|>")) {
    form.family = ChatFamily::chatml;
    read_chatml(form, jinja, where);
  } else if (has(jinja, "[INST]") && has(jinja, "<<SYS>>")) {
    form.family = ChatFamily::llama_2;
    form.begins_with_bos = true;
  } else if (has(jinja, "[INST]")) {
    form.family = ChatFamily::mistral;
    read_mistral(form, jinja, where);
  } else {
    throw input_error(where, "the chat template is of no known family").hint(kRemedy);
  }
  return form;
}

ChatTemplate load_chat_template(const std::filesystem::path& model_folder,
                                const Tokenizer& tokenizer) {
  const TokenizerConfig config = load_tokenizer_config(model_folder);
  if (!config.chat_template)
    throw input_error(model_folder.string(),
                      "the model has no chat template: neither chat_template.jinja nor "
                      "'chat_template' in tokenizer_config.json")
        .hint("it may be a base model: pass the whole prompt with --prompt");
  return recognise_chat_template(*config.chat_template, tokenizer, model_folder.string());
}

}  // namespace tandem::text
