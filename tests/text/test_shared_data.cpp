#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "io/file.h"
#include "shared_data.h"
#include "text/chat_template.h"
#include "text/support.h"

using namespace tandem;
using namespace tandem::text;
using test::json;

// Real tokenizers and Hugging Face's answers that may not be part of the repository.
namespace {

using Ids = std::vector<int32_t>;

std::vector<std::string> parts(const std::string& text, const std::string& separator) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t at; (at = text.find(separator, begin)) != std::string::npos;
       begin = at + separator.size())
    out.push_back(text.substr(begin, at - begin));
  out.push_back(text.substr(begin));
  return out;
}

Ids numbers(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<int32_t>(stream), std::istream_iterator<int32_t>()};
}

void check_vocab_merges(const std::string& name, const std::string& tokenizer_class,
                        const std::string& cases) {
  const auto data = tandem::test::unpacked("tokenizers");
  if (!data) return;
  const std::string config = json{{"tokenizer_class", tokenizer_class}}.dump();
  std::ofstream(*data / name / "tokenizer_config.json") << config;
  const auto t = load_tokenizer(*data / name);
  const std::filesystem::path stem = *data / "ggml_vocab" / ("ggml-vocab-" + cases + ".gguf");
  const auto texts = parts(io::read_file(stem.string() + ".inp"), "\n__ggml_vocab_test__\n");
  const auto lines = parts(io::read_file(stem.string() + ".out"), "\n");
  REQUIRE(texts.size() >= 40);
  REQUIRE(lines.size() >= texts.size() - 1);
  size_t n_checked = 0;
  for (size_t i = 0; i + 1 < texts.size() || (i < texts.size() && !texts[i].empty()); ++i) {
    INFO("case ", i, ": ", texts[i]);
    CHECK(t->encode(texts[i]) == numbers(lines[i]));
    ++n_checked;
  }
  MESSAGE(name << ": " << n_checked << " cases");
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  std::string out;
  const auto between = parts(text, from);
  for (size_t i = 0; i < between.size(); ++i) out.append(i > 0 ? to : "").append(between[i]);
  return out;
}

}  // namespace

TEST_SUITE("text/shared_data") {
  TEST_CASE("tiny models: tokenizer and chat template") {
    const auto path = tandem::test::shared_file("golden/tiny_models.json");
    if (!path) return;
    const json golden = json::parse(io::read_file(*path));
    const std::string folder = test::source_path("recipes/models/tiny-16m");
    const auto t = load_tokenizer(folder);
    REQUIRE(golden["tokenizer"].size() >= 40);
    for (const json& c : golden["tokenizer"]) {
      const auto text = c["text"].get<std::string>();
      const auto ids = c["ids"].get<Ids>();
      INFO(text);
      CHECK(t->encode(text, {.add_bos = false}) == ids);
      CHECK(t->encode(text) == c["ids_with_bos"].get<Ids>());
      CHECK(t->decode(ids) == c["decoded"].get<std::string>());
    }
    const Chat chat = parse_chat({{"messages", golden["chat_template"]["messages"]}}, "chat");
    CHECK(load_chat_template(folder, *t).prompt(chat, "chat").text ==
          golden["chat_template"]["text"].get<std::string>());
  }

  TEST_CASE("GPT-2") { check_vocab_merges("gpt-2", "GPT2Tokenizer", "gpt-2"); }
  TEST_CASE("Qwen2") { check_vocab_merges("qwen", "Qwen2Tokenizer", "qwen2"); }

  TEST_CASE("Mistral SentencePiece v1 and v3") {
    const auto data = tandem::test::unpacked("tokenizers");
    if (!data) return;
    const std::filesystem::path mistral = *data / "mistral";
    const auto load = [&](const char* file, const char* config) {
      const test::TemporaryFolder folder;
      std::filesystem::copy_file(mistral / file, folder.path() / "tokenizer.model");
      folder.write("tokenizer_config.json", config);
      return load_tokenizer(folder.path());
    };
    const auto v1 = load("tokenizer.model.v1", R"({"legacy": true})");
    const auto v3 = load("mistral_instruct_tokenizer_240323.model.v3", R"({"legacy": false})");
    int n_samples = 0;
    for (const auto& sample : std::filesystem::directory_iterator(mistral / "samples"))
      for (const char* version : {"v1", "v3"}) {
        const auto text_path = sample.path() / fmt::format("text_{}.txt", version);
        if (!std::filesystem::exists(text_path)) continue;
        INFO(text_path.string());
        // Samples show pieces: U+2581 for a space, <0x0A> for the byte of a line break.
        std::string text = replaced(io::read_file(text_path), "\u2581", " ");
        text = replaced(text, "<0x0A>", "\n");
        const bool is_v1 = std::string_view(version) == "v1";
        // In v1 the space after a control token is the one that encoding puts there.
        if (is_v1) text = replaced(replaced(text, "</s> ", "</s>"), "<s> ", "<s>");
        const auto& t = is_v1 ? v1 : v3;
        const json tokens =
            json::parse(io::read_file(sample.path() / fmt::format("tokens_{}.json", version)));
        CHECK(t->encode(text, {.add_bos = false}) == tokens["tokens"].get<Ids>());
        ++n_samples;
      }
    CHECK(n_samples >= 7);
  }

  TEST_CASE("stories260K: SentencePiece ids of the golden generation decode to text and back") {
    const auto folder = tandem::test::shared_file("models/stories260K/hf");
    if (!folder) return;
    const auto t = load_tokenizer(*folder);
    CHECK(t->vocab_size() == 512);
    const json golden = json::parse(io::read_file(*folder / "../golden_greedy.json"));
    const auto ids = golden["generated_ids"].get<Ids>();
    CHECK(t->encode(t->decode(ids), {.add_bos = false}) == ids);
  }
}
