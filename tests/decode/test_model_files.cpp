#include <doctest/doctest.h>

#include <fmt/format.h>

#include <set>

#include "decode/model_files.h"
#include "error_text.h"
#include "generate_runs.h"
#include "gguf_bytes.h"
#include "io/file.h"
#include "io/json.h"
#include "model/spec/settings.h"
#include "safetensors_text.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

TEST_SUITE("decode/model_files") {
  TEST_CASE("damaged files come with what to do about them, whatever is wrong") {
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
      CAPTURE(file);
      const TemporaryFolder folder;
      std::filesystem::copy(small_model("llama-3.1"), folder / "m");
      CHECK_NOTHROW(decode::open_model((folder / "m").string(), 0));
      for (const std::string text : {"[]", "{\"a\":", "\x02\0\0\0\0\0\0\0{}more"}) {
        std::filesystem::remove(folder / "m" / file);
        folder.write(std::string("m/") + file, text);
        const auto open = [&] { decode::open_model((folder / "m").string(), 0); };
        CHECK(input_error_text(open).find(file) != std::string::npos);
        CHECK(hint_text(open) != "");
      }
    }
  }

  TEST_CASE("a setting that changes logits changes the fingerprint, one that does not does not") {
    const TemporaryFolder folder;
    const auto fingerprint = [&](const io::Json& changes, const char* section = "rope_scaling") {
      io::Json j = io::parse_json(io::read_file(source_dir() / "tests/data/states/yarn.json"), "j");
      if (section != nullptr)
        j[section].update(changes);
      else
        j.update(changes);
      folder.write("config.json", j.dump());
      return decode::open_model("synthetic:" + (folder / "config.json").string(), 0).fingerprint;
    };
    const std::string usual = fingerprint(io::Json::object());
    CHECK(usual == "45f80dee9b54a045");  // that of version 037eef9
    std::set<std::string> all = {usual};
    const io::Json changes[] = {{{"attention_factor", 2.0}},
                                {{"beta_fast", 16.0}},
                                {{"beta_slow", 4.0}},
                                {{"truncate", false}},
                                {{"factor", 8.0}},
                                {{"original_max_position_embeddings", 32}},
                                {{"mscale", 2.0}, {"mscale_all_dim", 1.0}}};
    for (const io::Json& change : changes) all.insert(fingerprint(change));
    CHECK(all.size() == 1 + std::size(changes));
    for (const io::Json& same : {io::Json{{"attention_factor", nullptr}},
                                 io::Json{{"beta_slow", 1}}, io::Json{{"truncate", true}}})
      CHECK(fingerprint(same) == usual);
    CHECK(fingerprint({{"max_position_embeddings", 128}}, nullptr) == usual);
    CHECK(fingerprint({{"rms_norm_eps", 1e-5}}, nullptr) != usual);
  }

  TEST_CASE("tensors that are no weights never block a model, whatever their type") {
    const std::string before = decode::open_model(small_model("llama-3.1").string(), 0).fingerprint;
    const auto open_with = [](const char* name, const char* dtype, const std::string& shape,
                              size_t bytes) {
      const TemporaryFolder folder;
      std::filesystem::copy(small_model("llama-3.1"), folder / "m");
      folder.write("m/model.safetensors", with_tensor(io::read_file(folder / "m/model.safetensors"),
                                                      name, dtype, shape, bytes));
      return decode::open_model((folder / "m").string(), 0).fingerprint;
    };
    struct Case {
      const char* dtype;
      std::string shape;
      size_t bytes;
    };
    for (const Case& c : {Case{"I64", "[4]", 32}, Case{"BOOL", "[4]", 4}, Case{"U8", "[]", 1},
                          Case{"F64", "[2]", 16}, Case{"F8_E4M3", "[4]", 4}, Case{"I64", "[0]", 0},
                          Case{"F4", "[4]", 2}, Case{"F1024_NEW", "[3]", 384}}) {
      CAPTURE(c.dtype);
      CHECK(open_with("model.position_ids", c.dtype, c.shape, c.bytes) == before);
    }
    const auto as_weight = [&] { open_with("model.norm.weight", "F8_E4M3", "[64]", 64); };
    CHECK(input_error_text(as_weight).find("model.norm.weight: expected BF16, F16 or F32, found "
                                           "F8_E4M3") != std::string::npos);
    CHECK(hint_text(as_weight).find("use the original checkpoint") != std::string::npos);
  }

  TEST_CASE("the text part of a model with others is found by its embedding, under either name") {
    const auto plain = decode::open_model(small_model("mistral-plain").string(), 0);
    const io::Json config =
        io::parse_json(io::read_file(small_model("mistral-plain") / "config.json"), "config.json");
    const std::string file = io::read_file(small_model("mistral-plain") / "model.safetensors");
    uint64_t n = 0;
    std::memcpy(&n, file.data(), sizeof n);
    const io::Json header = io::parse_json(std::string_view(file).substr(sizeof n, n), "header");
    for (const std::string prefix : {"language_model.model.", "model.language_model."}) {
      CAPTURE(prefix);
      io::Json renamed = io::Json::object();
      for (const auto& [name, entry] : header.items()) {
        const bool head = name == "lm_head.weight" && prefix.starts_with("language");
        renamed[name.starts_with("model.") ? prefix + name.substr(6)
                : head                     ? "language_model." + name
                                           : name] = entry;
      }
      const TemporaryFolder folder;
      std::filesystem::create_directory(folder / "m");
      folder.write("m/config.json",
                   io::Json{{"architectures", {"Mistral3ForConditionalGeneration"}},
                            {"vision_config", {{"hidden_size", 8}}},
                            {"text_config", config}}
                       .dump());
      folder.write("m/model.safetensors",
                   safetensors_image(renamed.dump(), std::string_view(file).substr(sizeof n + n)));
      folder.write("m/model.safetensors",
                   with_tensor(io::read_file(folder / "m/model.safetensors"),
                               "vision_tower.patch_conv.weight", "F16", "[2]", 4));
      const auto files = decode::open_model((folder / "m").string(), 0);
      CHECK(model::settings_text(model::settings_of(files.config)) ==
            model::settings_text(model::settings_of(plain.config)));
      const auto same = [&](model::MatrixId id) {
        const auto shape = model::shape_of(id.role, plain.config);
        if (shape.size() == 1) return files.source->vector(id) == plain.source->vector(id);
        std::vector<float> a(static_cast<size_t>(shape[0] * shape[1])), b(a);
        files.source->rows(id, 0, shape[0], DType::f32, a.data());
        plain.source->rows(id, 0, shape[0], DType::f32, b.data());
        return a == b;
      };
      for (const model::MatrixId& id : model::all_matrices(plain.config)) CHECK(same(id));
    }
  }

  TEST_CASE("a head of its own is used although config.json ties it, with one warning") {
    const std::string name = "llama-3.2-tied";
    const TemporaryFolder folder;
    std::filesystem::copy(small_model(name), folder / "m");
    const decode::ModelFiles tied = decode::open_model((folder / "m").string(), 0);
    CHECK(tied.config.head.tied);
    CHECK(tied.warnings.empty());
    const auto& c = tied.config;
    const std::string shape = fmt::format("[{},{}]", c.vocab_size, c.dim);
    const size_t bytes = static_cast<size_t>(c.vocab_size) * static_cast<size_t>(c.dim) * 2;
    folder.write("m/model.safetensors", with_tensor(io::read_file(folder / "m/model.safetensors"),
                                                    "lm_head.weight", "BF16", shape, bytes));
    const decode::ModelFiles files = decode::open_model((folder / "m").string(), 0);
    CHECK_FALSE(files.config.head.tied);
    REQUIRE(files.warnings.size() == 1);
    CHECK(files.warnings[0].find("'lm_head.weight' has other values") != std::string::npos);
    CHECK(files.fingerprint != tied.fingerprint);
    std::vector<float> row(static_cast<size_t>(c.dim)), embedding(row);
    files.source->rows({model::Role::head}, 3, 4, DType::f32, row.data());
    files.source->rows({model::Role::embedding}, 3, 4, DType::f32, embedding.data());
    CHECK(row != embedding);
  }

  TEST_CASE("added tokens beyond the embedding are refused where they occur, and not before") {
    const TemporaryFolder folder;
    std::filesystem::copy(tiny_model("tiny-2m"), folder / "m");
    folder.write("m/added_tokens.json", R"({"<pad>": 8192, "<|im_end|>": 8193})");
    const decode::ModelFiles files = decode::open_model((folder / "m").string(), 0);
    CHECK(files.tokenizer->encode("Once").size() > 1);
    for (const bool bos : {true, false})
      CHECK(input_error_text([&] {
              files.tokenizer->encode("Once<pad> upon", {.add_bos = bos});
            }) == "text: the token '<pad>' has id 8192, but the model's embedding has 8192 rows");
    CHECK(input_error_text([&] {
            files.tokenizer->encode_within("x<|im_end|>", 100);
          }).find("'<|im_end|>' has id 8193") != std::string::npos);
    CHECK(input_error_text([&] {
            const size_t cut = 1;
            files.tokenizer->encode_cut("x<pad>", {&cut, 1});
          }).find("'<pad>' has id 8192") != std::string::npos);

    // A vocabulary that is larger in itself is another model's.
    std::filesystem::remove(folder / "m/added_tokens.json");
    const io::Json config = io::parse_json(io::read_file(folder / "m/config.json"), "c");
    io::Json smaller = config;
    smaller["vocab_size"] = 8000;
    folder.write("m/config.json", smaller.dump());
    CHECK(input_error_text([&] {
            decode::open_model((folder / "m").string(), 0);
          }).find("the tokenizer has 8192 tokens, the model only 8000") != std::string::npos);
  }

  TEST_CASE("a GGUF file of Mistral 7B 0.1 without its sliding window comes with a note") {
    const auto note = [](uint32_t context, float theta, const char* key, const char* name,
                         uint32_t window = 0) {
      GgufBytes file = tiny_gguf(context);
      file.real("llama.rope.freq_base", theta);
      file.text(key, name);
      if (window > 0) file.number("llama.attention.sliding_window", window);
      const TemporaryFolder folder;
      const auto files = decode::open_model(folder.write("m.gguf", file.bytes()).string(), 0);
      std::string found;
      for (const std::string& text : files.notes)
        if (text.starts_with("window ")) found += text;
      return found;
    };
    const std::string text =
        "window   key 'llama.attention.sliding_window' is missing, so a token attends to all "
        "before it. Mistral 7B 0.1 has a window of 4096 tokens: beyond 4096 tokens, results differ "
        "from the original's";
    CHECK(note(32768, 1e4f, "general.name", "mistralai_mistral-7b-v0.1") == text);
    CHECK(note(32768, 1e4f, "general.basename", "Mistral") == text);
    CHECK(note(32768, 1e4f, "general.name", "Llama").empty());
    CHECK(note(32768, 1e4f, "general.author", "mistralai").empty());
    CHECK(note(32768, 1e6f, "general.name", "Mistral 7B v0.2").empty());
    CHECK(note(4096, 1e4f, "general.name", "Mistral").empty());
    CHECK(note(32768, 1e4f, "general.name", "Mistral", 4096).empty());
  }

  TEST_CASE("no path at all") {
    const auto open = [] { decode::open_model("", 0); };
    CHECK(input_error_text(open) == "model.path: is empty, expected a model folder");
    CHECK(hint_text(open) != "");
  }
}
