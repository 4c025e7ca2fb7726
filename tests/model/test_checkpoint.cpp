#include <doctest/doctest.h>

#include <cstring>

#include "error_text.h"
#include "io/json.h"
#include "model/weights/checkpoint.h"
#include "model/weights/weights.h"
#include "mutator.h"
#include "source_dir.h"
#include "temporary_folder.h"

using namespace tandem;
using namespace tandem::model;
using test::input_error_text;

namespace {

ModelConfig small_config() {
  ModelConfig c;
  c.dim = 8;
  c.n_layers = 2;
  c.n_heads = 2;
  c.n_kv_heads = 1;
  c.head_dim = 4;
  c.ffn_dim = 6;
  c.vocab_size = 10;
  c.max_context = 16;
  return c;
}

/// Tensors of a model, all zero; held by name so that a test can change or remove one.
struct Tensors {
  std::map<std::string, io::Shape> shapes;
  std::vector<float> zeros = std::vector<float>(1024);

  explicit Tensors(const ModelConfig& c) {
    for (const Role w : outer_roles(c)) shapes[canonical_name({w})] = shape_of(w, c);
    for (int layer = 0; layer < c.n_layers; ++layer)
      for (const Role w : layer_roles(c)) shapes[canonical_name({w, layer})] = shape_of(w, c);
  }
  void write(const std::filesystem::path& path) const {
    std::vector<io::TensorView> views;
    for (const auto& [name, shape] : shapes) {
      size_t n = 1;
      for (const int64_t extent : shape) n *= static_cast<size_t>(extent);
      views.push_back({name, DType::f32, shape, std::as_bytes(std::span(zeros).first(n))});
    }
    io::write_safetensors(path, views);
  }
  std::string check_error(const ModelConfig& c) const {
    const test::TemporaryFolder folder;
    write(folder / "model.safetensors");
    const std::string prefix = (folder / "model.safetensors").string() + ": ";
    const std::string text =
        input_error_text([&] { check_checkpoint(c, Checkpoint::open(folder.path())); });
    return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  }
};

std::string open_error(const std::filesystem::path& folder) {
  return input_error_text([&] { Checkpoint::open(folder); });
}

std::string index_error(std::string_view text) {
  return input_error_text([&] { parse_shard_index(text, "i.json"); });
}

}  // namespace

TEST_SUITE("model/roles") {
  TEST_CASE("names in checkpoints and shapes") {
    ModelConfig c = small_config();
    CHECK(canonical_name({Role::q, 3}) == "model.layers.3.self_attn.q_proj.weight");
    CHECK(canonical_name({Role::ffn_pre, 0}) == "model.layers.0.post_attention_layernorm.weight");
    CHECK(canonical_name({Role::out_norm}) == "model.norm.weight");
    CHECK(shape_of(Role::k, c) == io::Shape{4, 8});
    CHECK(shape_of(Role::down, c) == io::Shape{8, 6});
    CHECK(layer_roles(c).size() == 9);
    CHECK(outer_roles(c).size() == 3);
    c.head.tied = c.kinds[0].attention.qkv_bias = c.kinds[0].attention.o_bias =
        c.kinds[0].ffn.bias = true;
    CHECK(layer_roles(c).size() == 16);
    CHECK(outer_roles(c).size() == 2);
    CHECK(n_params(c) ==
          10 * 8 + 8 + 2 * (2 * 8 + 2 * 64 + 2 * 32 + 3 * 48 + 8 + 4 + 4 + 8 + 6 + 6 + 8));
    CHECK(canonical_name({Role::q_norm, 1}) == "model.layers.1.self_attn.q_norm.weight");
    CHECK(canonical_name({Role::k_norm, 1}) == "model.layers.1.self_attn.k_norm.weight");
    CHECK(shape_of(Role::k_norm, c) == io::Shape{4});
    c.kinds[0].attention.qk_norm = QkNorm::head;
    CHECK(layer_roles(c).size() == 18);
  }

  TEST_CASE("stacks, biases and units") {
    ModelConfig c = small_config();
    const auto rows_of = [&](Role stack) {
      std::vector<int64_t> rows;
      for (const Role role : members(stack)) rows.push_back(first_row(role, c));
      return rows;
    };
    CHECK(rows_of(Role::qkv) == std::vector<int64_t>{0, c.q_dim(), c.q_dim() + c.kv_dim()});
    CHECK(rows_of(Role::o) == std::vector<int64_t>{0});
    CHECK(rows_of(Role::rest_gate_up) == std::vector<int64_t>{0, c.ffn_dim});
    CHECK(members(Role::rest_down).front() == Role::down);
    CHECK(shape_of(Role::qkv, c) == io::Shape{c.q_dim() + 2 * c.kv_dim(), c.dim});
    CHECK(bias_of(Role::v) == Role::v_bias);
    CHECK(first_row(Role::v_bias, c) == first_row(Role::v, c));
    CHECK(n_units(Role::o, c) == c.n_heads);
    CHECK(n_units(Role::v, c) == c.n_kv_heads);
    CHECK(n_units(Role::down, c) == c.ffn_dim);
    for (const Role role : all_roles())
      CHECK(is_norm(role) == canonical_name({role}).ends_with("norm.weight"));
  }
}

TEST_SUITE("model/checkpoint") {
  TEST_CASE("matrices of a fused tensor are its rows; another shape is named once a tensor") {
    const auto folder = test::source_dir() / "tests/data/models/phi4";
    const Checkpoint checkpoint = Checkpoint::open(folder);
    ModelConfig c = load_config(folder);
    CHECK_NOTHROW(check_checkpoint(c, checkpoint));
    const io::TensorView all = checkpoint.tensor("model.layers.1.self_attn.qkv_proj.weight");
    size_t at = 0;
    for (const Role role : {Role::q, Role::k, Role::v}) {
      const io::TensorView part = checkpoint.weight({role, 1}, c);
      CHECK(part.shape == shape_of(role, c));
      CHECK(part.bytes.data() == all.bytes.data() + at);
      at += part.bytes.size();
    }
    CHECK(at == all.bytes.size());
    c.n_kv_heads = 5;
    const std::string text = test::input_error_text([&] { check_checkpoint(c, checkpoint); });
    CHECK(text.find("3 tensors are not as config.json requires them") != std::string::npos);
    CHECK(text.find("model.layers.2.self_attn.qkv_proj.weight: expected shape [240,80], found "
                    "[112,80]") != std::string::npos);
  }

  TEST_CASE("the embedded models hold what their configurations need") {
    for (const char* name : {"tiny-16m", "tiny-2m"}) {
      const auto folder = test::source_dir() / "recipes/models" / name;
      const Checkpoint checkpoint = Checkpoint::open(folder);
      const ModelConfig config = load_config(folder);
      CHECK_NOTHROW(check_checkpoint(config, checkpoint));
      const io::TensorView wq = checkpoint.weight({Role::q, 1}, config);
      CHECK(wq.dtype == DType::bf16);
      CHECK(wq.shape == io::Shape{config.q_dim(), config.dim});
    }
  }

  TEST_CASE("missing, misshapen and extra tensors") {
    const ModelConfig c = small_config();
    Tensors t(c);
    CHECK(t.check_error(c) == "nothing thrown");
    t.shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = {2};
    CHECK(t.check_error(c) == "nothing thrown");
    t.shapes.erase("lm_head.weight");
    CHECK(t.check_error(c) ==
          "1 tensor is not as config.json requires it:\n  lm_head.weight: missing, expected shape "
          "[10,8]");
    ModelConfig tied = c;
    tied.head.tied = true;
    CHECK(t.check_error(tied) == "nothing thrown");
    t.shapes["model.layers.1.mlp.up_proj.weight"] = {8, 6};
    t.shapes["model.layers.0.self_attn.k_proj.bias"] = {4};
    CHECK(t.check_error(c) ==
          "3 tensors are not as config.json requires them:\n"
          "  lm_head.weight: missing, expected shape [10,8]\n"
          "  model.layers.1.mlp.up_proj.weight: expected shape [6,8], found [8,6]\n"
          "  model.layers.0.self_attn.k_proj.bias: unexpected bias, not announced by config.json");
  }

  TEST_CASE("norms of heads: missing, of another width, and where none belong") {
    ModelConfig c = small_config();
    c.kinds[0].attention.qk_norm = QkNorm::head;
    Tensors t(c);
    CHECK(t.check_error(c) == "nothing thrown");
    t.shapes.erase("model.layers.0.self_attn.q_norm.weight");
    t.shapes["model.layers.1.self_attn.k_norm.weight"] = {8};  // one norm over all heads
    CHECK(t.check_error(c) ==
          "2 tensors are not as config.json requires them:\n"
          "  model.layers.0.self_attn.q_norm.weight: missing, expected shape [4]\n"
          "  model.layers.1.self_attn.k_norm.weight: expected shape [4], found [8]");
    const Tensors normed(c);
    CHECK(normed.check_error(small_config()) ==
          "4 tensors are not as config.json requires them:\n"
          "  model.layers.0.self_attn.q_norm.weight: unexpected head norm, not announced by "
          "config.json\n"
          "  model.layers.1.self_attn.q_norm.weight: unexpected head norm, not announced by "
          "config.json\n"
          "  model.layers.0.self_attn.k_norm.weight: unexpected head norm, not announced by "
          "config.json\n"
          "  model.layers.1.self_attn.k_norm.weight: unexpected head norm, not announced by "
          "config.json");
  }

  TEST_CASE("names without \"model.\" in front, as the base class is saved") {
    ModelConfig c = small_config();
    Tensors t(c);
    const auto rename = [&](const std::string& from, const std::string& to) {
      t.shapes[to] = t.shapes.at(from);
      t.shapes.erase(from);
    };
    rename("model.norm.weight", "norm.weight");  // single tensors may differ
    CHECK(t.check_error(c) == "nothing thrown");
    for (const auto& [name, shape] : Tensors(c).shapes)
      if (name.starts_with("model.") && t.shapes.contains(name)) rename(name, name.substr(6));
    CHECK(t.check_error(c) == "nothing thrown");
    rename("lm_head.weight", "model.lm_head.weight");
    CHECK(t.check_error(c) == "nothing thrown");
    t.shapes["layers.1.self_attn.q_proj.bias"] = {8};
    t.shapes.erase("layers.0.mlp.up_proj.weight");
    CHECK(t.check_error(c) ==
          "2 tensors are not as config.json requires them:\n"
          "  model.layers.0.mlp.up_proj.weight: missing, expected shape [6,8]\n"
          "  model.layers.1.self_attn.q_proj.bias: unexpected bias, not announced by config.json");
  }

  TEST_CASE("a tied model may store its head alone; an untied one may not") {
    ModelConfig c = small_config();
    Tensors t(c);
    t.shapes.erase("model.embed_tokens.weight");
    CHECK(t.check_error(c) ==
          "1 tensor is not as config.json requires it:\n  model.embed_tokens.weight: missing, "
          "expected shape [10,8]");
    c.head.tied = true;
    CHECK(t.check_error(c) == "nothing thrown");
    const test::TemporaryFolder folder;
    std::ranges::fill(t.zeros, 3.0f);
    t.write(folder / "model.safetensors");
    const auto source = checkpoint_source(c, Checkpoint::open(folder.path()));
    std::vector<float> row(8);
    const int32_t id = 9;
    source->embed({&id, 1}, row.data());
    CHECK(row == std::vector<float>(8, 3.0f));
    source->rows({Role::embedding, 0}, 9, 10, DType::f32, row.data());
    CHECK(row == std::vector<float>(8, 3.0f));
    t.shapes.erase("lm_head.weight");
    CHECK(t.check_error(c) ==
          "1 tensor is not as config.json requires it:\n  model.embed_tokens.weight: missing, "
          "expected shape [10,8]");
  }

  TEST_CASE("a head that config.json ties is used as stored where it differs from the embedding") {
    ModelConfig c = small_config();
    c.head.tied = true;
    const test::TemporaryFolder folder;
    const auto settle = [&](DType type, int64_t cols, const auto& head) {
      const std::vector<float> embedding(80, 1.0f);
      const io::TensorView tensors[] = {
          {"model.embed_tokens.weight", DType::f32, {10, 8}, std::as_bytes(std::span(embedding))},
          {"lm_head.weight", type, {10, cols}, std::as_bytes(std::span(head))}};
      io::write_safetensors(folder / "model.safetensors", tensors);
      ModelConfig settled = c;
      const std::string warning = settle_head(settled, Checkpoint::open(folder.path()));
      CHECK(settled.head.tied == warning.empty());
      return warning;
    };
    constexpr uint16_t kOne = 0x3f80;  // in bf16
    CHECK(settle(DType::f32, 8, std::vector<float>(80, 1.0f)) == "");
    CHECK(settle(DType::bf16, 8, std::vector<uint16_t>(80, kOne)) == "");
    for (const size_t at : {0, 79}) {
      std::vector<float> head(80, 1.0f);
      head[at] = 2.0f;
      CHECK(settle(DType::f32, 8, head)
                .find("'lm_head.weight' has other values, so the stored head is used") !=
            std::string::npos);
    }
    CHECK(settle(DType::f32, 4, std::vector<float>(40, 1.0f)) != "");
    CHECK(settle(DType::bf16, 8, std::vector<uint16_t>(80, kOne + 1)) != "");
    c.head.tied = false;
    ModelConfig untied = c;
    CHECK(settle_head(untied, Checkpoint::open(folder.path())) == "");
    CHECK_FALSE(untied.head.tied);
  }

  TEST_CASE("a long list of problems is cut") {
    ModelConfig c = small_config();
    const Tensors t(c);
    c.n_layers = 5;  // three layers of nine weights are missing
    const std::string text = t.check_error(c);
    CHECK(text.starts_with("27 tensors are not as config.json requires them:\n"));
    CHECK(text.ends_with("\n  and 7 more"));
    CHECK(std::ranges::count(text, '\n') == 21);
  }

  TEST_CASE("a tensor of another dtype is refused when it is used") {
    const test::TemporaryFolder folder;
    const std::vector<int64_t> ids(8);
    io::write_safetensors(
        folder / "model.safetensors",
        std::vector<io::TensorView>{{"x", DType::i64, {8}, std::as_bytes(std::span(ids))}});
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    CHECK(checkpoint.contains("x"));
    CHECK(checkpoint.names() == std::vector<std::string>{"x"});
    const std::string path = (folder / "model.safetensors").string();
    CHECK(input_error_text([&] { checkpoint.tensor("x"); }) ==
          path + ": tensor 'x' has dtype 'I64', expected BF16, F16 or F32");
    CHECK(input_error_text([&] { checkpoint.tensor("y"); }) == path + ": tensor 'y' is missing");
  }

  TEST_CASE("shards are one checkpoint") {
    const ModelConfig c = small_config();
    const test::TemporaryFolder folder;
    Tensors first(c), second(c);
    io::Json map;
    for (const auto& [name, shape] : Tensors(c).shapes) {
      const bool is_first = name < "model.layers.1";
      (is_first ? second : first).shapes.erase(name);
      map[name] = is_first ? "one.safetensors" : "two.safetensors";
    }
    first.write(folder / "one.safetensors");
    second.write(folder / "two.safetensors");
    const auto write_index = [&] {
      return folder.write("model.safetensors.index.json", io::Json{{"weight_map", map}}.dump());
    };
    const std::string index = write_index().string();
    {
      const Checkpoint checkpoint = Checkpoint::open(folder.path());
      CHECK(checkpoint.shards().size() == 2);
      CHECK_NOTHROW(check_checkpoint(c, checkpoint));
      CHECK(checkpoint.weight({Role::o, 1}, c).bytes.size() == 256);
    }
    map["ghost"] = "one.safetensors";
    write_index();
    CHECK(open_error(folder.path()) ==
          (folder / "one.safetensors").string() +
              ": tensor 'ghost' is missing, but the index places it in this file");
    map["ghost"] = "three.safetensors";
    write_index();
    CHECK(open_error(folder.path()) ==
          index + ": 1 of 3 shard files missing:\n  three.safetensors");
  }

  TEST_CASE("indices that lie") {
    CHECK(
        parse_shard_index(R"({"metadata":{"total_size":1},"weight_map":{"a":"s"}})", "").at("a") ==
        "s");
    CHECK(index_error("{}") == "i.json: key 'weight_map' is missing, expected an object");
    CHECK(index_error(R"({"weight_map":{}})") ==
          "i.json: weight_map is empty, expected tensor names");
    CHECK(index_error(R"({"weight_map":{"a":1}})") ==
          "i.json: weight_map 'a': expected a string, found the number 1");
    for (const char* shard : {"../x", "/etc/passwd", "..", ".", "", "a\\\\b", "sub/x"})
      CHECK(index_error(std::string(R"({"weight_map":{"a":")") + shard + "\"}}")
                .ends_with("is not a plain file name"));
    CHECK(index_error("{\"weight_map\":{\"a\":\"x\\u0000y\"}}") ==
          "i.json: weight_map 'a': shard 'x?y' is not a plain file name");
  }

  TEST_CASE("folders with other formats") {
    const test::TemporaryFolder folder;
    const std::string path = folder.path().string();
    CHECK(open_error(folder.path()) == path +
                                           ": model.safetensors and model.safetensors.index.json "
                                           "are missing, expected one of them");
    folder.write("pytorch_model-00002.bin", "PK");
    folder.write("pytorch_model-00001.bin", "PK");
    CHECK(open_error(folder.path()) == path +
                                           "/pytorch_model-00001.bin: PyTorch pickle files are not "
                                           "supported, expected safetensors");
    folder.write("model.Q4_K_M.gguf", "GGUF");
    CHECK(open_error(folder.path()) ==
          path + "/model.Q4_K_M.gguf: is a GGUF file, expected a folder with safetensors files");
    CHECK(open_error(folder / "pytorch_model-00001.bin") ==
          path +
              "/pytorch_model-00001.bin: PyTorch pickle files are not supported, expected "
              "safetensors");
    CHECK(open_error(folder / "none") == path + "/none: no such model folder");
  }
}

TEST_SUITE("model/mutation") {
  TEST_CASE("damaged config.json and index.json raise input errors and nothing else") {
    const std::string config =
        io::read_file(test::source_dir() / "recipes/models/tiny-16m/config.json");
    const std::string qwen =
        R"({"architectures":["Qwen2ForCausalLM"],"hidden_size":64,"num_hidden_layers":4,)"
        R"("num_attention_heads":8,"num_key_value_heads":2,"intermediate_size":172,"vocab_size":512,)"
        R"("max_position_embeddings":256,"use_sliding_window":true,"sliding_window":64,)"
        R"("max_window_layers":2,"layer_types":["full_attention","full_attention","sliding_attention",)"
        R"("sliding_attention"],"dtype":"bfloat16","rope_parameters":{"rope_type":"llama3",)"
        R"("rope_theta":1e6,"factor":8,"low_freq_factor":1,"high_freq_factor":4,)"
        R"("original_max_position_embeddings":128},"eos_token_id":[1,2]})";
    const std::string index =
        R"({"metadata":{"total_size":48},"weight_map":{"a":"m-1.safetensors",)"
        R"("b":"m-2.safetensors","c":"m-1.safetensors"}})";
    const test::Mutator mutator(4711);
    const auto check = [&](const std::string& valid, const auto& read) {
      REQUIRE_NOTHROW(read(valid));
      for (uint32_t run = 0; run < test::fuzz_runs(20000); ++run) {
        try {
          read(mutator.mutate(valid, run));
        } catch (const Error& e) {
          if (e.kind() != ErrorKind::input) FAIL("run ", run, ": ", e.what());
        } catch (const std::exception& e) {
          FAIL("run ", run, ": ", e.what());
        }
      }
    };
    const auto read_config = [](const std::string& text) {
      const ModelConfig c = parse_config(text, "c");
      if (n_params(c) <= 0 || c.head_dim % 2 != 0 || c.n_heads % c.n_kv_heads != 0)
        throw std::logic_error("an impossible configuration was accepted");
    };
    check(config, read_config);
    check(qwen, read_config);
    check(index, [](const std::string& text) { parse_shard_index(text, "i"); });
  }
}
