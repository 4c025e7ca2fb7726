#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "error_text.h"
#include "io/safetensors.h"
#include "model/adapters/fused_source.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::model;

namespace {

ModelConfig config(bool tied = false, bool biases = false) {
  ModelConfig c;
  c.dim = 8;
  c.n_layers = 2;
  c.n_heads = 2;
  c.n_kv_heads = 1;
  c.head_dim = 4;
  c.ffn_dim = 6;
  c.vocab_size = 10;
  c.max_context = 16;
  c.head.tied = tied;
  c.kinds[0].attention.qkv_bias = biases;
  return c;
}

const std::string kModel = "base_model.model.model.", kHead = "base_model.model.lm_head.";

/// A folder of PEFT in memory: factors of q of rank 2, and what is added.
struct Folder {
  std::deque<std::vector<float>> numbers;
  std::vector<io::TensorView> tensors;
  ModelConfig model;

  explicit Folder(ModelConfig c = config()) : model(std::move(c)) {
    for (int layer = 0; layer < 2; ++layer)
      add_factors(module("layers." + std::to_string(layer) + ".self_attn.q_proj"), {8, 8});
  }
  static std::string module(const std::string& name) { return kModel + name + "."; }

  Folder& add(const std::string& name, const io::Shape& shape) {
    int64_t n = 1;
    for (const int64_t extent : shape) n *= extent;
    std::vector<float>& v = numbers.emplace_back();
    for (int64_t i = 0; i < n; ++i)
      v.push_back(0.25f * static_cast<float>((i * 5 + std::ssize(numbers)) % 7) - 0.75f);
    tensors.push_back({name, DType::f32, shape, std::as_bytes(std::span(v))});
    return *this;
  }
  Folder& add_factors(const std::string& module, const io::Shape& shape) {
    return add(module + "lora_A.weight", {2, shape[1]})
        .add(module + "lora_B.weight", {shape[0], 2});
  }
  Folder& add_embedding_factors() {
    return add(module("embed_tokens") + "lora_embedding_A", {2, model.vocab_size})
        .add(module("embed_tokens") + "lora_embedding_B", {model.dim, 2});
  }
  const std::vector<float>& of(const std::string& name) const {
    const auto it = std::ranges::find(tensors, name, &io::TensorView::name);
    REQUIRE(it != tensors.end());
    return numbers[static_cast<size_t>(it - tensors.begin())];
  }
  /// members   of adapter_config.json; q_proj is a target, gamma is 1.5
  LowRankAdapter open(const std::string& members = "", const char* more_targets = "") const {
    const std::string text =
        R"({"peft_type": "LORA", "r": 2, "lora_alpha": 3, "target_modules": ["q_proj")" +
        std::string(more_targets) + "]" + (members.empty() ? "" : ", " + members) + "}";
    return LowRankAdapter::parse(io::Safetensors::hold(io::safetensors_bytes(tensors), "file"),
                                 text, model);
  }
};

std::unique_ptr<WeightSource> base(const ModelConfig& c) { return synthetic_source(c, 1); }

std::unique_ptr<WeightSource> merged(const Folder& folder, LowRankAdapter adapter, float by = 1) {
  const bool unties = adapter.unties();
  std::vector<WeightedAdapter> one;
  one.push_back({std::move(adapter), by});
  return fused_source(unties ? untied_source(base(folder.model)) : base(folder.model),
                      std::move(one), folder.model);
}

std::vector<float> rows(const WeightSource& source, Role weight, const ModelConfig& c) {
  const io::Shape shape = shape_of(weight, c);
  std::vector<float> values(static_cast<size_t>(shape[0] * shape[1]));
  source.rows({weight, 0}, 0, shape[0], DType::f32, values.data());
  return values;
}

std::vector<float> embedded(const WeightSource& source, const ModelConfig& c) {
  std::vector<int32_t> ids;
  for (int id = c.vocab_size - 1; id >= 0; --id) ids.push_back(id);
  std::vector<float> out(ids.size() * static_cast<size_t>(c.dim));
  source.embed(ids, out.data());
  std::vector<float> in_order;
  for (auto row = out.end(); row != out.begin(); row -= c.dim)
    in_order.insert(in_order.end(), row - c.dim, row);
  return in_order;
}

/// W + by 1.5 B A, with A and B as the file of an embedding has them.
void check_embedding(const std::vector<float>& found, const Folder& f, float by = 1) {
  const std::vector<float> before = rows(*base(f.model), Role::embedding, f.model);
  const auto &a = f.of(kModel + "embed_tokens.lora_embedding_A"),
             &b = f.of(kModel + "embed_tokens.lora_embedding_B");
  for (size_t id = 0; id < 10; ++id)
    for (size_t i = 0; i < 8; ++i) {
      const double want = before[id * 8 + i] +
                          by * 1.5 * (double{a[id]} * b[2 * i] + double{a[10 + id]} * b[2 * i + 1]);
      CHECK(found[id * 8 + i] == doctest::Approx(want).epsilon(1e-6));
    }
}

void check_refused(const Folder& f, const std::string& members, const char* message,
                   const char* hint, const char* more_targets = "") {
  const auto open = [&] { f.open(members, more_targets); };
  const std::string text = test::input_error_text(open);
  CAPTURE(text);
  CHECK(text.find(message) != std::string::npos);
  CHECK(text.find("damaged") == std::string::npos);
  CHECK(test::hint_text(open).find(hint) != std::string::npos);
}

}  // namespace

TEST_SUITE("model/peft_folders") {
  TEST_CASE("a module of a fused tensor changes each of its matrices, and is written as one") {
    ModelConfig c = config();
    c.architecture = "Phi3ForCausalLM";
    Folder f(c);
    f.tensors.clear();
    f.add_factors(Folder::module("layers.0.self_attn.qkv_proj"), {16, 8});
    const LowRankAdapter adapter = f.open("", R"(, "qkv_proj")");
    const auto source = merged(f, adapter);
    const auto &a = f.tensors[0], &b = f.tensors[1];
    const auto number = [](const io::TensorView& t, size_t i) {
      float x = 0;
      std::memcpy(&x, t.bytes.data() + i * sizeof x, sizeof x);
      return double{x};
    };
    for (const Role role : {Role::q, Role::k, Role::v}) {
      const std::vector<float> found = rows(*source, role, c), before = rows(*base(c), role, c);
      for (size_t i = 0; i < found.size(); ++i) {
        const size_t row = i / 8 + static_cast<size_t>(first_row(role, c)), in = i % 8;
        const double change =
            number(b, 2 * row) * number(a, in) + number(b, 2 * row + 1) * number(a, 8 + in);
        CHECK(found[i] == doctest::Approx(before[i] + 1.5 * change).epsilon(1e-6));
      }
    }
    // The change of q and v alone, by separate factors and by those of the whole tensor.
    std::vector<LowRankDelta> deltas;
    for (const Role role : {Role::q, Role::v})
      deltas.push_back({.id = {role, 0},
                        .rank = 2,
                        .gamma = 1.5f,
                        .a = f.numbers[0],
                        .b = std::span(f.numbers[1]).first(role == Role::q ? 16 : 8)});
    const test::TemporaryFolder folder;
    write_low_rank_adapter(folder.path(), {.base = "base", .rank = 2, .alpha = 3}, deltas, c);
    const LowRankAdapter written = LowRankAdapter::open(folder.path(), c);
    CHECK(written.rank({Role::k, 0}) == 4);
    for (const LowRankDelta& d : deltas) {
      std::vector<float> wanted = rows(*base(c), d.id.role, c), found = wanted;
      merge_low_rank(wanted, d);
      written.merge(d.id, 0, shape_of(d.id.role, c)[0], found);
      CHECK(found == wanted);
    }
    const std::vector<float> k = rows(*base(c), Role::k, c);
    std::vector<float> same = k;
    written.merge({Role::k, 0}, 0, 4, same);
    CHECK(same == k);
    f.tensors[1].shape = {8, 4};
    check_refused(f, "", "lora_B.weight' is 'F32' [8,4], expected F32, BF16 or F16 [16,2]", "base",
                  R"(, "qkv_proj")");
  }

  TEST_CASE("factors of the embedding change its rows, wherever these are read") {
    Folder f;
    f.add_embedding_factors();
    for (const float by : {1.0f, 0.5f}) {
      const auto source = merged(f, f.open("", R"(, "embed_tokens")"), by);
      check_embedding(rows(*source, Role::embedding, f.model), f, by);
      check_embedding(embedded(*source, f.model), f, by);
      CHECK(rows(*source, Role::head, f.model) == rows(*base(f.model), Role::head, f.model));
    }
    const LowRankAdapter adapter = f.open("", R"(, "embed_tokens")");
    CHECK(adapter.others() == std::vector<std::string>{"model.embed_tokens.weight"});
    CHECK_FALSE(adapter.unties());
    CHECK(f.open().others().empty());  // its tensors are not used
  }

  TEST_CASE("factors of the head change it, and untie it from the embedding") {
    for (const bool tied : {false, true}) {
      Folder f(config(tied));
      f.add_factors(kHead, {10, 8});
      const LowRankAdapter adapter = f.open("", R"(, "lm_head")");
      CHECK(adapter.unties() == tied);
      const auto source = merged(f, adapter);
      const std::vector<float> found = rows(*source, Role::head, f.model),
                               before = rows(*base(f.model), tied ? Role::embedding : Role::head,
                                             f.model);
      const auto &a = f.of(kHead + "lora_A.weight"), &b = f.of(kHead + "lora_B.weight");
      for (size_t r = 0; r < 10; ++r)
        for (size_t c = 0; c < 8; ++c)
          CHECK(found[r * 8 + c] ==
                doctest::Approx(before[r * 8 + c] +
                                1.5 * (double{b[2 * r]} * a[c] + double{b[2 * r + 1]} * a[8 + c])));
      CHECK(rows(*source, Role::embedding, f.model) ==
            rows(*base(f.model), Role::embedding, f.model));
    }
  }

  TEST_CASE("ensure_weight_tying gives a tied head the factors of the embedding") {
    Folder f(config(true));
    f.add_embedding_factors().add_factors(kHead, {10, 8});
    const LowRankAdapter apart = f.open("", R"(, "embed_tokens", "lm_head")"),
                         tied = f.open(R"("ensure_weight_tying": true)", R"(, "embed_tokens")");
    CHECK(apart.unties());
    CHECK_FALSE(tied.unties());
    CHECK(tied.warnings().empty());
    check_embedding(rows(*merged(f, tied), Role::embedding, f.model), f);
  }

  TEST_CASE("embeddings saved along replace those of the base") {
    Folder f;
    f.add(kModel + "embed_tokens.weight", {10, 8}).add(kHead + "weight", {10, 8});
    const auto source = merged(f, f.open());
    CHECK(rows(*source, Role::embedding, f.model) == f.of(kModel + "embed_tokens.weight"));
    CHECK(embedded(*source, f.model) == f.of(kModel + "embed_tokens.weight"));
    CHECK(rows(*source, Role::head, f.model) == f.of(kHead + "weight"));
    // Half of the change.
    const auto half = rows(*merged(f, f.open(), 0.5f), Role::embedding, f.model),
               before = rows(*base(f.model), Role::embedding, f.model);
    for (size_t i = 0; i < half.size(); ++i)
      CHECK(half[i] == doctest::Approx((before[i] + f.of(kModel + "embed_tokens.weight")[i]) / 2));
    // In a model that ties them they are one weight.
    Folder t(config(true));
    t.add(kModel + "embed_tokens.weight", {10, 8});
    const LowRankAdapter adapter = t.open();
    CHECK_FALSE(adapter.unties());
    CHECK(rows(*merged(t, adapter), Role::embedding, t.model) ==
          t.of(kModel + "embed_tokens.weight"));
    Folder h(config(true));
    h.add(kHead + "weight", {10, 8});
    CHECK_FALSE(h.open().unties());
    CHECK(rows(*merged(h, h.open()), Role::embedding, h.model) == h.of(kHead + "weight"));
    // The weight of a target has another name; factors are added to it.
    Folder both;
    both.add_embedding_factors().add(kModel + "embed_tokens.base_layer.weight", {10, 8});
    std::vector<float> found =
        rows(*merged(both, both.open("", R"(, "embed_tokens")")), Role::embedding, both.model);
    const auto& w = both.of(kModel + "embed_tokens.base_layer.weight");
    const auto plain = rows(*base(both.model), Role::embedding, both.model);
    for (size_t i = 0; i < found.size(); ++i) found[i] += plain[i] - w[i];
    check_embedding(found, both);
  }

  TEST_CASE("embeddings saved along that equal the base's have no effect") {
    for (const bool tied : {false, true}) {
      Folder f(config(tied));
      f.add(kModel + "embed_tokens.weight", {10, 8});
      f.numbers.back() = rows(*base(f.model), Role::embedding, f.model);
      f.tensors.back().bytes = std::as_bytes(std::span(f.numbers.back()));
      LowRankAdapter adapter = f.open();
      CHECK_FALSE(adapter.others().empty());
      adapter.drop_equal(*base(f.model));
      CHECK(adapter.others().empty());
      f.numbers.back()[79] += 1;
      adapter = f.open();
      adapter.drop_equal(*base(f.model));
      CHECK(adapter.others().size() == (tied ? 2 : 1));
    }
  }

  TEST_CASE("a resized vocabulary is refused with the way to resize the base") {
    const char* const hint = "resize_token_embeddings(12)";
    Folder f;
    f.add(kModel + "embed_tokens.weight", {12, 8});
    check_refused(f, "", "has 12 rows, the model has 10", hint);
    Folder head;
    head.add(kHead + "weight", {12, 8});
    check_refused(head, "", "has 12 rows, the model has 10", hint);
    check_refused(head, R"("modules_to_save": ["lm_head"])", "has 12 rows", hint);
  }

  TEST_CASE("modules_to_save replace whole modules and are no targets") {
    Folder f;
    const std::string up = kModel + "layers.0.mlp.up_proj.weight";
    f.add(kModel + "norm.weight", {8}).add(up, {6, 8});
    const auto source =
        merged(f, f.open(R"("modules_to_save": ["model.norm", "layers.0.mlp.up_proj"])",
                         R"(, "layers.0.mlp.up_proj")"));
    CHECK(source->vector({Role::out_norm, 0}) == f.of(kModel + "norm.weight"));
    CHECK(rows(*source, Role::up, f.model) == f.of(up));
    CHECK(source->vector({Role::attn_pre, 0}) == base(f.model)->vector({Role::attn_pre, 0}));
    // Saved copies untie; shared replacements do not.
    Folder t(config(true));
    t.add(kModel + "embed_tokens.weight", {10, 8});
    CHECK(t.open(R"("modules_to_save": ["embed_tokens"])").unties());
    CHECK_FALSE(
        t.open(R"("modules_to_save": ["embed_tokens"], "ensure_weight_tying": true)").unties());
    CHECK_FALSE(t.open().unties());
    check_refused(f, R"("modules_to_save": ["lm_head"])", "lm_head.weight' is missing", "PEFT");
    check_refused(f, R"("modules_to_save": ["mlp"])", "is missing", "PEFT");
  }

  TEST_CASE("trainable tokens replace rows") {
    const std::string rows_of = "token_adapter.trainable_tokens_delta";
    for (const bool tied : {false, true}) {
      Folder f(config(tied));
      f.add(kModel + "embed_tokens." + rows_of, {3, 8});
      const LowRankAdapter adapter = f.open(R"("trainable_token_indices": [7, 0, 4])");
      CHECK_FALSE(adapter.unties());
      const std::vector<float> found = rows(*merged(f, adapter), Role::embedding, f.model),
                               before = rows(*base(f.model), Role::embedding, f.model);
      const auto& values = f.of(kModel + "embed_tokens." + rows_of);
      const std::vector<int> ids = {7, 0, 4};
      for (int id = 0; id < 10; ++id) {
        const auto it = std::ranges::find(ids, id);
        for (int i = 0; i < 8; ++i)
          CHECK(found[static_cast<size_t>(id * 8 + i)] ==
                (it == ids.end() ? before[static_cast<size_t>(id * 8 + i)]
                                 : values[static_cast<size_t>((it - ids.begin()) * 8 + i)]));
      }
      f.add(kHead + rows_of, {1, 8});
      CHECK(f.open(R"("trainable_token_indices": {"embed_tokens": [7, 0, 4], "lm_head": [3]})")
                .unties() == tied);
      CHECK(f.open(R"("trainable_token_indices": [7, 0, 4])").facts() !=
            f.open(R"("trainable_token_indices": [7, 0, 5])").facts());
      check_refused(f, R"("trainable_token_indices": [7, 0])", "expected F32, BF16 or F16 [2,8]",
                    "base model");
    }
  }

  TEST_CASE("biases are replaced, or added to, where the model has them") {
    const std::string q = "layers.1.self_attn.q_proj.", k = "layers.0.self_attn.k_proj.";
    Folder f(config(false, true));
    f.add(kModel + q + "base_layer.bias", {8}).add(kModel + k + "bias", {4});
    const auto source = merged(f, f.open(R"("bias": "all")"));
    CHECK(source->vector({Role::q_bias, 1}) == f.of(kModel + q + "base_layer.bias"));
    CHECK(source->vector({Role::k_bias, 0}) == f.of(kModel + k + "bias"));
    CHECK(source->vector({Role::k_bias, 1}) == std::vector<float>(4));
    Folder added(config(false, true));
    for (const char* layer : {"0", "1"})
      added.add(kModel + "layers." + layer + ".self_attn.q_proj.lora_B.bias", {8});
    std::vector<float> want = added.of(kModel + q + "lora_B.bias");
    for (float& x : want) x *= 1.5f;
    CHECK(merged(added, added.open(R"("lora_bias": true)"))->vector({Role::q_bias, 1}) == want);
    for (float& x : want) x *= 0.5f;
    CHECK(merged(added, added.open(R"("lora_bias": true)"), 0.5f)->vector({Role::q_bias, 1}) ==
          want);
    check_refused(Folder(), R"("lora_bias": true)", "'lora_bias' adds a bias", "without lora_bias");
    CHECK(Folder().open(R"("bias": "lora_only")").others().empty());
  }

  TEST_CASE("tensors that PEFT would not use get a warning") {
    CHECK(Folder().open().warnings().empty());
    Folder f;
    f.add_factors(kHead, {10, 8});
    const auto two = f.open().warnings();
    REQUIRE(two.size() == 1);
    CHECK(two[0].find("2 tensors of the adapter are not used: 'base_model.model.lm_head.lora_A") !=
          std::string::npos);
    Folder vision;
    vision.add("base_model.model.visual.proj.weight", {3});
    CHECK(vision.open().warnings().at(0).find("1 tensor of the adapter is not used") !=
          std::string::npos);
    Folder target;  // of a target the weight has another name
    target.add(kModel + "layers.0.self_attn.q_proj.weight", {8, 8});
    CHECK(target.open().warnings().size() == 1);
    CHECK(target.open().others().empty());
    CHECK(target.open().facts() != Folder().open().facts());
  }

  TEST_CASE("targets without factors stay as they are, with a warning") {
    const Folder f;
    const auto warnings = f.open("", R"(, "v_proj")").warnings();
    REQUIRE(warnings.size() == 1);
    CHECK(
        warnings[0].find("no factors for model.layers.0.self_attn.v_proj and 1 more, which stay") !=
        std::string::npos);
    CHECK_FALSE(f.open("", R"(, "v_proj")").holds({Role::v, 0}));
    CHECK(f.open("", R"(, "lm_head")").warnings().size() == 1);
    Folder part;
    part.add(kHead + "lora_A.weight", {2, 8});
    check_refused(part, "", "lm_head.lora_B.weight' is missing", "PEFT", R"(, "lm_head")");
    Folder none;
    none.tensors.clear();
    none.add(kHead + "weight", {10, 8});
    check_refused(none, "", "has no LoRA factors for model.layers.0.self_attn.q_proj", "PEFT");
  }
}
