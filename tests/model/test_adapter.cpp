#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "base/convert.h"
#include "error_text.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/adapters/fused_source.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::model;
using test::TemporaryFolder;

namespace {

const AdapterBase kBase = {"base", "f00d"};
const std::string kUp = "model.layers.0.mlp.up_proj.s2.";
const std::string kDown = "model.layers.1.mlp.down_proj.s2.";
const std::string kQ = "model.layers.1.self_attn.q_proj.s2.";
const std::string kO = "model.layers.0.self_attn.o_proj.s2.";

ModelConfig config() {
  ModelConfig c;
  c.dim = 12;
  c.n_layers = 2;
  c.n_heads = 2;
  c.n_kv_heads = 1;
  c.head_dim = 4;
  c.ffn_dim = 6;
  c.vocab_size = 16;
  c.max_context = 16;
  return c;
}

struct Slices {
  std::vector<std::vector<float>> values;
  std::vector<AdapterSlice> slices;

  void add(MatrixId id, std::vector<int32_t> index, int64_t other) {
    std::vector<float>& v = values.emplace_back(index.size() * static_cast<size_t>(other));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = 1 + static_cast<float>(i) + 0.1f * static_cast<float>(values.size());
    slices.push_back({id, std::move(index), v});
  }
};

/// Some of up, down, q and o.
Slices some_slices() {
  Slices s;
  s.values.reserve(8);
  s.add({Role::up, 0}, {0, 5}, 12);
  s.add({Role::down, 1}, {1, 2, 4}, 12);
  s.add({Role::q, 1}, {4, 5, 6, 7}, 12);
  s.add({Role::o, 0}, {0, 1, 2, 3}, 12);
  return s;
}

void write(const std::filesystem::path& folder) {
  write_adapter(folder, {.base = kBase, .selection = R"({"strategy":"random"})", .steps = 3},
                some_slices().slices);
}

/// The tensors of an adapter, to be changed and written again.
struct Parts {
  struct Part {
    DType dtype;
    io::Shape shape;
    std::string bytes;
  };
  std::map<std::string, Part> tensors;
  std::map<std::string, std::string> metadata;

  static Parts read(const std::filesystem::path& folder) {
    const auto file = io::Safetensors::open(folder / "s2ft_adapter.safetensors");
    Parts parts{.tensors = {}, .metadata = file.metadata()};
    for (const io::TensorEntry& entry : file.entries()) {
      const io::TensorView t = file.tensor(entry);
      parts.tensors[entry.name] = {
          t.dtype, t.shape, {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()}};
    }
    return parts;
  }
  void write(const std::filesystem::path& folder) const {
    std::vector<io::TensorView> views;
    for (const auto& [name, part] : tensors)
      views.push_back({name, part.dtype, part.shape, std::as_bytes(std::span(part.bytes))});
    io::write_safetensors(folder / "s2ft_adapter.safetensors", views, metadata);
  }
  template <class T>
  void set(const std::string& name, size_t i, T value) {
    std::memcpy(tensors.at(name).bytes.data() + i * sizeof value, &value, sizeof value);
  }
  /// The values in bf16.
  void narrow() {
    for (auto& [name, part] : tensors) {
      if (part.dtype != DType::f32) continue;
      std::string narrowed;
      for (size_t i = 0; i < part.bytes.size(); i += sizeof(float)) {
        float x;
        std::memcpy(&x, part.bytes.data() + i, sizeof x);
        const bf16 y = to_bf16(x);
        narrowed.append(reinterpret_cast<const char*>(&y), sizeof y);
      }
      part.dtype = DType::bf16;
      part.bytes = narrowed;
    }
  }
};

std::unique_ptr<WeightSource> adapted(const std::filesystem::path& folder) {
  std::vector<WeightedAdapter> one;
  one.push_back({Adapter::open(folder, config(), kBase)});
  return fused_source(synthetic_source(config(), 1), std::move(one), config());
}

std::vector<float> rows_of(const WeightSource& source, MatrixId id, int64_t begin, int64_t end,
                           DType dtype) {
  const auto n = static_cast<size_t>((end - begin) * shape_of(id.role, config())[1]);
  std::vector<std::byte> bytes(n * dtype_bytes(dtype));
  source.rows(id, begin, end, dtype, bytes.data());
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i)
    values[i] = dtype == DType::f32 ? reinterpret_cast<const float*>(bytes.data())[i]
                                    : to_float(reinterpret_cast<const bf16*>(bytes.data())[i]);
  return values;
}

}  // namespace

TEST_SUITE("model/adapter") {
  TEST_CASE("values stand in their places, all others are the base's, in any range of rows") {
    const Slices slices = some_slices();
    for (const bool narrow : {false, true}) {
      const TemporaryFolder folder;
      write(folder.path());
      Parts parts = Parts::read(folder.path());
      if (narrow) parts.narrow();
      parts.write(folder.path());
      const auto base = synthetic_source(config(), 1), both = adapted(folder.path());
      for (const DType dtype : {DType::f32, DType::bf16})
        for (int layer = 0; layer < 2; ++layer)
          for (const Role weight : kLayerRoles) {
            const io::Shape shape = shape_of(weight, config());
            std::vector<float> expected = rows_of(*base, {weight, layer}, 0, shape[0], dtype);
            for (const AdapterSlice& s : slices.slices) {
              if (s.id != MatrixId{weight, layer}) continue;
              const auto n = static_cast<int64_t>(s.index.size());
              for (int64_t i = 0; i < static_cast<int64_t>(s.values.size()); ++i) {
                const bool columns = ends_in_stream(weight);
                const int64_t row = columns ? i / n : s.index[static_cast<size_t>(i / shape[1])];
                const int64_t col = columns ? s.index[static_cast<size_t>(i % n)] : i % shape[1];
                const float x = s.values[static_cast<size_t>(i)];
                expected[static_cast<size_t>(row * shape[1] + col)] =
                    narrow || dtype == DType::bf16 ? to_float(to_bf16(x)) : x;
              }
            }
            for (int64_t begin = 0; begin < shape[0]; ++begin)
              for (int64_t end = begin + 1; end <= shape[0]; ++end) {
                const auto row = [&](int64_t r) { return expected.begin() + r * shape[1]; };
                REQUIRE(rows_of(*both, {weight, layer}, begin, end, dtype) ==
                        std::vector<float>(row(begin), row(end)));
              }
          }
      for (const Role norm : {Role::attn_pre, Role::ffn_pre})
        CHECK(both->vector({norm, 1}) == base->vector({norm, 1}));
      std::vector<float> a(12), b(12);
      base->embed(std::vector{7}, a.data());
      both->embed(std::vector{7}, b.data());
      CHECK(a == b);
    }
  }

  TEST_CASE("a matrix read in many pieces") {
    ModelConfig c = config();
    c.dim = 301;
    c.ffn_dim = 1201;
    std::vector<int32_t> index(1201);
    std::iota(index.begin(), index.end(), 0);
    Slices slices;
    slices.add({Role::down, 0}, index, 301);  // 1.4 MB
    const TemporaryFolder folder;
    write_adapter(folder.path(), {.base = kBase, .selection = "{}"}, slices.slices);
    const Adapter adapter = Adapter::open(folder.path(), c, kBase);
    std::vector<float> rows(slices.values[0].size());
    adapter.replace({Role::down, 0}, 0, 301, DType::f32, rows.data());
    CHECK(rows == slices.values[0]);
  }

  TEST_CASE("one in the place of another") {
    const TemporaryFolder folder;
    write(folder / "a");
    Slices slices;
    slices.add({Role::up, 1}, {3}, 12);
    write_adapter(folder / "a", {.base = kBase, .selection = "{}", .steps = 9}, slices.slices);
    const Adapter adapter = Adapter::open(folder / "a", config(), kBase);
    CHECK(adapter.holds({Role::up, 1}));
    CHECK_FALSE(adapter.holds({Role::up, 0}));
    CHECK(adapter.file().metadata().at("trained_steps") == "9");
  }

  TEST_CASE("what is wrong with its tensors, and what to do") {
    struct Case {
      const char* what;
      std::function<void(Parts&)> spoil;
      std::string message;
    };
    const auto say = [](const char* key, const char* value) {
      return [=](Parts& p) { p.metadata[key] = value; };
    };
    const Case cases[] = {
        {"format", say("format", "lora"), "is not an s2ft adapter: its format is 'lora'"},
        {"version", say("version", "2"), "has format version '2', this build reads"},
        {"mode", say("mode", "delta"), "stores values in mode 'delta', this build reads mode"},
        {"base", say("base_fingerprint", "beef"),
         "was trained on model 'base' (fingerprint 'beef'), the model is 'base' ('f00d')"},
        {"no index", [](Parts& p) { p.tensors.erase(kUp + "index"); },
         "'" + kUp + "index' is missing"},
        {"no values", [](Parts& p) { p.tensors.erase(kUp + "value"); },
         "'" + kUp + "value' is missing"},
        {"nothing", [](Parts& p) { p.tensors.clear(); }, "holds no values"},
        {"other layer",
         [](Parts& p) {
           p.tensors["model.layers.2.mlp.up_proj.s2.index"] = p.tensors[kUp + "index"];
         },
         "tensor 'model.layers.2.mlp.up_proj.s2.index' belongs to no matrix of "},
        {"index of floats", [](Parts& p) { p.tensors[kUp + "index"].dtype = DType::f32; },
         "is 'F32' [2], expected one-dimensional I32"},
        {"index of two dimensions",
         [](Parts& p) {
           p.tensors[kUp + "index"].shape = {1, 2};
         },
         "is 'I32' [1,2], expected one-dimensional I32"},
        {"empty index",
         [](Parts& p) {
           p.tensors[kUp + "index"] = {DType::i32, {0}, ""};
         },
         "names 0 features, expected 1 to 6"},
        {"negative", [](Parts& p) { p.set(kUp + "index", 0, int32_t{-1}); },
         "names feature -1, expected 0 to 5"},
        {"beyond", [](Parts& p) { p.set(kUp + "index", 1, int32_t{6}); },
         "names feature 6, expected 0 to 5"},
        {"twice", [](Parts& p) { p.set(kUp + "index", 1, int32_t{0}); },
         "names feature 0 after 0, expected ascending features without repeats"},
        {"order", [](Parts& p) { p.set(kDown + "index", 2, int32_t{0}); },
         "names feature 0 after 2, expected ascending features without repeats"},
        {"head that begins late", [](Parts& p) { p.set(kQ + "index", 0, int32_t{3}); },
         "has only a part of head 0, expected all 4 features"},
        {"head with a hole", [](Parts& p) { p.set(kO + "index", 3, int32_t{4}); },
         "has only a part of head 0, expected all 4 features"},
        {"head cut short",
         [](Parts& p) {
           p.tensors[kQ + "index"].shape = {3};
           p.tensors[kQ + "index"].bytes.resize(12);
         },
         "has only a part of head 1, expected all 4 features"},
        {"shape",
         [](Parts& p) {
           p.tensors[kDown + "value"].shape = {3, 12};
         },
         "is 'F32' [3,12], expected F32 or BF16 [12,3]"},
        {"dtype", [](Parts& p) { p.tensors[kDown + "value"].dtype = DType::i32; },
         "is 'I32' [12,3], expected F32 or BF16 [12,3]"},
        {"infinity",
         [](Parts& p) { p.set(kDown + "value", 5, std::numeric_limits<float>::infinity()); },
         "value 5 of '" + kDown + "value' is inf, expected a finite number"},
        {"NaN", [](Parts& p) { p.set(kDown + "value", 35, std::nanf("")); },
         "value 35 of '" + kDown + "value' is nan"},
    };
    for (const Case& c : cases) {
      CAPTURE(c.what);
      const TemporaryFolder folder;
      write(folder.path());
      Parts parts = Parts::read(folder.path());
      c.spoil(parts);
      parts.write(folder.path());
      const auto open = [&] { Adapter::open(folder.path(), config(), kBase); };
      const std::string text = test::input_error_text(open);
      CAPTURE(text);
      CHECK(text.find(c.message) != std::string::npos);
      CHECK(text.find("s2ft_adapter.safetensors: ") != std::string::npos);
      CHECK(test::hint_text(open) != "");
    }
  }

  TEST_CASE("what is wrong with its folder, and what to do") {
    const auto expect = [](const TemporaryFolder& folder, const char* message) {
      const auto open = [&] { Adapter::open(folder / "a", config(), kBase); };
      const std::string text = test::input_error_text(open);
      CAPTURE(text);
      CHECK(text.find(message) != std::string::npos);
      CHECK(test::hint_text(open) != "");
    };
    const TemporaryFolder none, peft, no_config, no_tensors, other, list, cut;
    expect(none, "no such adapter folder");
    std::filesystem::create_directory(peft / "a");
    peft.write("a/adapter_config.json", "{}");
    expect(peft, "s2ft_config.json");
    for (const TemporaryFolder* folder : {&no_config, &no_tensors, &other, &list, &cut})
      write(*folder / "a");
    std::filesystem::remove(no_config / "a/s2ft_config.json");
    expect(no_config, "s2ft_config.json: is missing");
    std::filesystem::remove(no_tensors / "a/s2ft_adapter.safetensors");
    expect(no_tensors, "s2ft_adapter.safetensors: is missing");
    Parts parts = Parts::read(other / "a");
    parts.metadata["trained_steps"] = "4";
    parts.write(other / "a");
    expect(other, "s2ft_config.json: 'trained_steps' is '3', but '4' in s2ft_adapter.safetensors");
    const std::string config_text = io::read_file(list / "a/s2ft_config.json");
    for (const char* key : {"selection", "kind", "dtype"}) {
      io::Json said = io::parse_json(config_text, "config");
      REQUIRE(said.contains(key));
      said[key] = -1;
      list.write("a/s2ft_config.json", said.dump());
      expect(list, "is the number -1, which differs from s2ft_adapter.safetensors");
      said.erase(key);
      list.write("a/s2ft_config.json", said.dump());
      expect(list, "is missing, which differs from s2ft_adapter.safetensors");
    }
    list.write("a/s2ft_config.json", "[]");
    expect(list, "expected an object, found an array of 0 items");
    // A type that no terminal should obey.
    const TemporaryFolder control;
    write(control / "a");
    std::string bytes = io::read_file(control / "a/s2ft_adapter.safetensors");
    bytes.replace(bytes.rfind("F32"), 1, "\x7f");
    control.write("a/s2ft_adapter.safetensors", bytes);
    expect(control, "is '?32' [");
    // A value that is as likely as the true one.
    bytes = io::read_file(cut / "a/s2ft_adapter.safetensors");
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    cut.write("a/s2ft_adapter.safetensors", bytes);
    expect(cut, "' is damaged: bytes ");
    const auto tensors = cut / "a/s2ft_adapter.safetensors";
    std::filesystem::resize_file(tensors, std::filesystem::file_size(tensors) - 1);
    CHECK(test::input_error_text([&] {
            Adapter::open(cut / "a", config(), kBase);
          }).find("s2ft_adapter.safetensors: ") == tensors.string().rfind("s2ft_adapter"));
  }
}
