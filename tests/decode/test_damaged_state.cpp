#include <doctest/doctest.h>

#include <map>

#include "decode/state.h"
#include "error_text.h"
#include "fuzz/state_model.h"
#include "generate_runs.h"
#include "io/file.h"
#include "io/json.h"
#include "model/spec/settings.h"
#include "mutator.h"
#include "safetensors_text.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::test;

namespace {

/// A state of the smallest model, to be damaged part by part before it is written.
struct Parts {
  explicit Parts(int n_tokens) : tokens(static_cast<size_t>(n_tokens), 1) {
    const auto& c = fuzz::state_model().config;
    for (int p = 0; p * kPageTokens < n_tokens; ++p)
      for (const std::string which : {"k", "v"})
        pages[which + ".0." + std::to_string(p)] = {c.n_kv_heads, kPageTokens, c.head_dim};
  }

  std::string image() const {
    const TemporaryFolder folder;
    const std::vector<double> zeros(4096);
    std::vector<io::TensorView> tensors;
    if (has_tokens)
      tensors.push_back({"tokens",
                         DType::i32,
                         {static_cast<int64_t>(tokens.size())},
                         std::as_bytes(std::span(tokens))});
    for (const auto& [name, shape] : pages) {
      size_t n = dtype_bytes(dtype);
      for (const int64_t extent : shape) n *= static_cast<size_t>(extent);
      tensors.push_back({name, dtype, shape, std::as_bytes(std::span(zeros)).first(n)});
    }
    io::write_safetensors(folder / "s", tensors, metadata);
    return io::read_file(folder / "s");
  }

  Ids tokens;
  bool has_tokens = true;
  DType dtype = DType::f32;
  std::map<std::string, io::Shape> pages;
  std::map<std::string, std::string> metadata = {{"format", "tandem.state/1"},
                                                 {"model", "small"},
                                                 {"fingerprint", fuzz::state_model().fingerprint},
                                                 {"compute", "f32"},
                                                 {"policy", "full"}};
};

decode::SavedState parse(const std::string& image) {
  return decode::parse_state(io::Safetensors::parse(as_bytes(image), "s"), fuzz::state_model(),
                             DType::f32);
}

/// The message without its "s: ".
std::string error_of(const Parts& parts) {
  const std::string image = parts.image();
  const std::string text = input_error_text([&] { parse(image); });
  return text.starts_with("s: ") ? text.substr(3) : text;
}

template <class Change>
std::string error_after(const Change& change, int n_tokens = 200) {
  Parts parts(n_tokens);
  change(parts);
  return error_of(parts);
}

}  // namespace

TEST_SUITE("decode/damaged_state") {
  TEST_CASE("a whole state is read; pages in the middle may be absent") {
    Parts parts(200);
    std::string image = parts.image();
    CHECK(parse(image).tokens == parts.tokens);
    parts.pages.erase("k.0.1");
    parts.pages.erase("v.0.1");
    image = parts.image();
    CHECK_NOTHROW(parse(image));
  }

  TEST_CASE("every kind of damage is an error of kind input that says what is wrong") {
    CHECK(error_after([](Parts& p) { p.metadata.clear(); }) ==
          "is not a saved state (format '', expected 'tandem.state/1' or 'tandem.state/2')");
    CHECK(error_after([](Parts& p) { p.metadata["format"] = "tandem.state/9"; }) ==
          "is not a saved state (format 'tandem.state/9', expected 'tandem.state/1' or "
          "'tandem.state/2')");
    CHECK(error_after([](Parts& p) { p.metadata["fingerprint"] = "00"; }) ==
          "was saved with another model ('small')");
    CHECK(error_after([](Parts& p) { p.metadata["compute"] = "bf16"; }) ==
          "holds a KV cache of 'bf16', this run computes in f32");
    CHECK(error_after([](Parts& p) { p.dtype = DType::bf16; }) ==
          "tensor 'k.0.0' is bf16 [1,64,2], expected f32 [1,64,2]");
    CHECK(error_after([](Parts& p) {
            p.pages["v.0.2"] = {1, 64, 3};
          }) == "tensor 'v.0.2' is f32 [1,64,3], expected f32 [1,64,2]");
    CHECK(error_after([](Parts& p) { p.tokens[9] = 8; }) ==
          "token id 8 is outside the vocabulary of 8");
    CHECK(error_after([](Parts& p) { p.tokens[9] = -1; }) ==
          "token id -1 is outside the vocabulary of 8");
    CHECK(error_after([](Parts& p) { p.has_tokens = false; }).find("'tokens'") !=
          std::string::npos);
    CHECK(error_after([](Parts& p) { p.tokens.clear(); }) ==
          "tensor 'tokens': expected a non-empty list of I32, found [0]");
    CHECK(error_after([](Parts& p) { p.pages.erase("v.0.1"); }) == "tensor 'v.0.1' is missing");
    CHECK(error_after([](Parts& p) { p.pages.erase("k.0.1"); }) == "tensor 'k.0.1' is missing");
    CHECK(error_after([](Parts& p) {
            p.pages.erase("k.0.3");
            p.pages.erase("v.0.3");
          }) == "tensor 'k.0.3' is missing");
  }

  TEST_CASE("states of version 037eef9, which recorded no settings") {
    const auto states = source_dir() / "tests/data/states";
    const auto open = [&](const std::string& model, const char* state) {
      return decode::open_state(states / state, decode::open_model(model, 0), DType::f32);
    };
    CHECK(open(small_model("qwen3-tied"), "qwen3-tied-037eef9.safetensors").tokens.size() == 10);
    const io::Json yarn = io::parse_json(io::read_file(states / "yarn.json"), "yarn.json");
    const TemporaryFolder folder;
    const auto open_yarn = [&](const io::Json& scaling) {
      io::Json j = yarn;
      j["rope_scaling"].update(scaling);
      folder.write("config.json", j.dump());
      return open("synthetic:" + (folder / "config.json").string(), "yarn-037eef9.safetensors");
    };
    CHECK(open_yarn(io::Json::object()).tokens.size() == 10);
    const io::Json changes = {
        {"attention_factor", 2.0}, {"beta_fast", 16.0}, {"beta_slow", 4.0}, {"truncate", false}};
    for (const auto& [key, value] : changes.items()) {
      CAPTURE(key);
      const std::string text = input_error_text([&] { open_yarn({{key, value}}); });
      CHECK(text.find("was saved with another model ('synthetic:./yarn.json'): '" + key +
                      "' was not recorded, now ") != std::string::npos);
    }
    CHECK(input_error_text([&] {
            open_yarn({{"factor", 8.0}});
          }).ends_with("was saved with another model ('synthetic:./yarn.json')"));
  }

  TEST_CASE("a state names the settings that have changed since it was saved") {
    Parts parts(70);
    const auto& config = fuzz::state_model().config;
    parts.metadata["settings"] = model::settings_text(model::settings_of(config));
    const std::string image = parts.image();
    CHECK_NOTHROW(parse(image));
    model::ModelConfig other = config;
    other.ropes[0].theta = 5e5;
    other.ropes[0].scaling.attention_factor = 2;
    parts.metadata["settings"] = model::settings_text(model::settings_of(other));
    CHECK(error_of(parts) ==
          "was saved with another model ('small'): 'rope_theta' was 500000, now 10000, "
          "'attention_factor' was 2, now 1");
  }

  TEST_CASE("a file that ends early, at any byte") {
    const std::string image = Parts(70).image();
    for (size_t n = 0; n < image.size(); n += n < 1500 ? 1 : 97) {
      CAPTURE(n);
      const std::string text = input_error_text([&] { parse(image.substr(0, n)); });
      CHECK(text.starts_with("s: "));
    }
  }

  TEST_CASE("real files: another model's state, another number type, a checkpoint, none at all") {
    const TemporaryFolder folder;
    const auto engine = make_engine(small_model("llama-3.1"));
    const Ids ids = random_ids(*engine, 20, 1);
    const int slot = engine->cache().create();
    prefill(*engine, slot, ids);
    decode::save_state(folder / "state", *engine, slot, ids);
    const auto other = decode::open_model(small_model("llama-2").string(), 0);
    CHECK(input_error_text([&] {
            decode::open_state(folder / "state", other, DType::f32);
          }).find("was saved with another model ('llama-3.1')") != std::string::npos);
    CHECK(hint_text([&] { decode::open_state(folder / "state", engine->files(), DType::bf16); }) ==
          "set cache.dtype and model.compute to the type of the state");
    CHECK(input_error_text([&] {
            decode::open_state(small_model("llama-2") / "model.safetensors", other, DType::f32);
          }).find("is not a saved state") != std::string::npos);
    CHECK(input_error_text([&] {
            decode::open_state(folder / "absent", other, DType::f32);
          }).find((folder / "absent").string()) == 0);
  }

  TEST_CASE("seeded mutants: an error of kind input or a state, never anything else") {
    const std::string image = Parts(70).image();
    const Mutator mutator(0x57a7e);
    const uint32_t runs = fuzz_runs(2000);
    uint32_t n_accepted = 0;
    for (uint32_t run = 0; run < runs; ++run) {
      CAPTURE(run);
      const std::string mutant = mutator.mutate(image, run);
      bool accepted = false;
      const std::string text = input_error_text([&] {
        const decode::SavedState state = parse(mutant);
        accepted = true;
        for (const int32_t id : state.tokens) REQUIRE((id >= 0 && id < 8));
      });
      if (accepted)
        ++n_accepted;
      else
        CHECK(text.starts_with("s"));  // "s: ", or "s:1:14: " where the header's JSON is at fault
    }
    MESSAGE(n_accepted << " of " << runs << " mutants are still states");
    CHECK(n_accepted < runs);
  }
}
