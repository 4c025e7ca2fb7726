// A model whose parts several ranks have: what it says is what the whole says.
#include <doctest/doctest.h>

#include "base/parallel.h"
#include "base/rng.h"
#include "error_text.h"
#include "generate_runs.h"
#include "group_source.h"
#include "model/weights/quantized_source.h"
#include "ops/channels.h"
#include "ops/quantizing.h"
#include "ranks/group_comm.h"
#include "ranks/rank_threads.h"
#include "source_dir.h"

using namespace tandem;
using namespace tandem::test;
using decode::Engine;

namespace {

std::filesystem::path folder_of(const std::string& name) {
  return source_dir() / "tests/data/models" / name;
}

/// A rank's engine, on one thread.
std::unique_ptr<Engine> rank_engine(const std::filesystem::path& folder, ranks::Group& group,
                                    const std::shared_ptr<Comm>& comm, const Setup& s = {}) {
  set_threads(1);
  decode::ModelFiles files = decode::open_model(folder.string(), 0);
  decode::take_shard(files, group.rank(), group.size());
  decode::EngineSpec spec = engine_spec(s);
  spec.n_ranks = group.size();
  spec.comm = comm;
  return std::make_unique<Engine>(std::move(files), spec);
}

/// Of a group that outlives it.
std::shared_ptr<Comm> comm_of(ranks::Group& group) {
  return std::make_shared<ranks::HostComm>(
      std::shared_ptr<ranks::Group>(&group, [](ranks::Group*) {}));
}

struct Said {
  std::vector<Row> rows;
  Ids ids;
};

/// Logits of a prompt and of tokens after it, and a greedy text of two sequences.
Said ask(Engine& engine) {
  Said said;
  const Ids ids = random_ids(engine, 70, 3);
  const int slot = engine.cache().create();
  said.rows = {prefill(engine, slot, std::span(ids).first(60), 25)};
  for (Row& row : extend_each(engine, slot, std::span(ids).last(10)))
    said.rows.push_back(std::move(row));
  engine.cache().release(slot);
  decode::GenerateSpec spec;
  spec.max_tokens = 12;
  const Generated g = generate(
      engine, {request(random_ids(engine, 9, 4)), request(random_ids(engine, 33, 5))}, spec);
  said.ids = g.ids[0];
  said.ids.insert(said.ids.end(), g.ids[1].begin(), g.ids[1].end());
  return said;
}

void check(const std::string& name, int size, const Setup& s = {}) {
  CAPTURE(name);
  CAPTURE(size);
  const auto whole = make_engine(folder_of(name), s);
  const Said want = ask(*whole);
  std::vector<Said> said(static_cast<size_t>(size));
  const auto results = run_ranks({.size = size}, [&](ranks::Group& group) {
    const auto engine = rank_engine(folder_of(name), group, comm_of(group), s);
    said[static_cast<size_t>(group.rank())] = ask(*engine);
  });
  for (const RankResult& r : results) REQUIRE(r.text == "");
  for (const Said& of : said) {
    REQUIRE(of.rows.size() == want.rows.size());
    double most = 0;
    for (size_t i = 0; i < want.rows.size(); ++i)
      most = worse(most, max_difference(of.rows[i], want.rows[i]));
    CHECK(most < 2e-4);
    CHECK(of.ids == want.ids);
    CHECK(of.rows == said[0].rows);  // to the bit: all ranks draw from the same
  }
}

/// A double of weights that adapters were merged into: numbers, over a base in groups.
class MergedSource final : public model::WeightSource {
 public:
  MergedSource(const model::ModelConfig& config, const model::WeightSource& base)
      : merged_(model::synthetic_source(config, 0)), base_(base) {}
  WeightFormat native(model::MatrixId id) const override { return merged_->native(id); }
  void rows(model::MatrixId id, int64_t begin, int64_t end, WeightFormat to,
            void* out) const override {
    merged_->rows(id, begin, end, to, out);
  }
  std::vector<float> vector(model::MatrixId id) const override { return merged_->vector(id); }
  void embed(std::span<const int32_t> ids, float* out) const override { merged_->embed(ids, out); }
  const model::WeightSource& base() const override { return base_; }

 private:
  std::unique_ptr<model::WeightSource> merged_;
  const model::WeightSource& base_;
};

/// One layer that four ranks divide, with FFN neurons in three groups of 64 and a part.
model::ModelConfig narrow_config() {
  model::ModelConfig c = decode::open_config("synthetic:llama-3.2-1b");
  c.dim = 128;
  c.n_layers = 1;
  c.n_heads = c.n_kv_heads = 4;
  c.head_dim = 32;
  c.ffn_dim = 200;
  return c;
}

}  // namespace

TEST_SUITE("decode/ranks") {
  TEST_CASE("every architecture, any number of ranks that divides it") {
    int pairs = 0;
    for (const char* name : test::small_models()) {
      const model::ModelConfig config = decode::open_config(folder_of(name).string());
      for (const int size : {2, 3, 4, 5, 7})
        if (model::divides(config, size)) {
          check(name, size);
          ++pairs;
        }
    }
    CHECK(pairs >= 15);
  }

  TEST_CASE("policies of keys, prompts layer by layer") {
    recipe::Cache hybrid;
    hybrid.kind = recipe::CacheKind::hybrid;
    for (const recipe::Cache& cache : {hybrid, streaming(4, 16), snapkv(16, 8)})
      check("llama-3.1", 2, {.caches = {cache}});
    check("llama-3.2-tied", 3, {.order = recipe::PrefillOrder::layers});
    check("qwen2-layer-types", 2, {.caches = {snapkv(16, 8)}, .logit_rows = 2});
  }

  TEST_CASE("what a rank holds: every head, channel and token once, but for shared KV heads") {
    const model::ModelConfig c = decode::open_config(folder_of("llama-3.2-tied").string());
    for (const int size : {1, 2, 3, 6}) {
      CAPTURE(size);
      int heads = 0, channels = 0, tokens = 0;
      for (int r = 0; r < size; ++r) {
        const model::Shard s = model::shard_of(c, r, size);
        CHECK(s.heads.first == heads);
        CHECK(s.channels.first == channels);
        CHECK(s.vocabulary.first == tokens);
        heads += s.heads.n;
        channels += s.channels.n;
        tokens += s.vocabulary.n;
        CHECK(s.heads.n % s.kv_heads.n == 0);
        CHECK(s.kv_heads.first == s.heads.first / c.group_size());
        CHECK(s.channels.first % 16 == 0);
      }
      CHECK(heads == c.n_heads);
      CHECK(channels == c.ffn_dim);
      CHECK(tokens >= c.vocab_size);
    }
    CHECK(error_text([&] { model::shard_of(c, 0, 4); }) ==
          "run.world_size: is 4, which does not divide 6 query heads and 2 KV heads evenly");
    CHECK(
        error_text([&] { model::shard_of(c, 0, 6, c.ffn_dim); }) ==
        fmt::format("run.world_size: is 6, which does not divide {0} FFN neurons in blocks of {0}",
                    c.ffn_dim));
    CHECK(hint_text([&] {
            model::shard_of(c, 0, 4);
          }).find("can be sharded over 1, 2, 3, 6 ranks") != std::string::npos);
  }

  TEST_CASE("weights in groups are cut between groups, or refused by name") {
    const model::ModelConfig c = narrow_config();
    const GroupSource source(c);
    CHECK(model::channel_block(c, source) == 64);
    CHECK(model::channel_block(c, MergedSource(c, source)) ==
          64);  // switched adapters read the base
    CHECK(model::channel_block(c, *model::synthetic_source(c, 0)) == model::kChannelBlock);
    const auto part_of = [&](int rank, int n_ranks, int block) {
      return model::shard_source(c, model::shard_of(c, rank, n_ranks, block),
                                 std::make_unique<GroupSource>(c));
    };
    const model::Shard last = model::shard_of(c, 1, 2, 64);
    CHECK(last.channels.first == 128);
    CHECK(last.channels.n == 72);
    for (const model::Role role : model::kLayerRoles) {
      CAPTURE(model::word_of(role));
      const io::Shape shape = model::shape_of(role, c);
      const auto whole = native_rows(source, {role}, shape[0], shape[1]);
      std::vector<std::vector<std::byte>> rows(static_cast<size_t>(shape[0]));
      for (int rank = 0; rank < 2; ++rank) {
        const model::Shard s = model::shard_of(c, rank, 2, 64);
        const io::Shape own = model::shape_of(role, model::config_of(c, s));
        const auto bytes = native_rows(*part_of(rank, 2, 64), {role}, own[0], own[1]);
        const auto each = static_cast<ptrdiff_t>(row_bytes(GroupSource::kFormat, own[1]));
        const bool columns = model::ends_in_stream(role);
        const int first = columns ? 0 : model::own_features(role, c, s).first;
        for (int64_t r = 0; r < own[0]; ++r) {
          auto& row = rows[static_cast<size_t>(first + r)];
          row.insert(row.end(), bytes.begin() + r * each, bytes.begin() + (r + 1) * each);
        }
      }
      std::vector<std::byte> joined;
      for (const auto& row : rows) joined.insert(joined.end(), row.begin(), row.end());
      CHECK(joined == whole);
    }
    const auto refusal = [&](int n_ranks, int block, model::Role role) {
      return
          [&, n_ranks, block, role] { native_rows(*part_of(0, n_ranks, block), {role}, 1, 200); };
    };
    CHECK(error_text(refusal(4, 16, model::Role::o)) ==
          "run.world_size: is 4, which cuts model.layers.0.self_attn.o_proj.weight (i4 g64 f16 "
          "integer) inside a group of 64 inputs");
    CHECK(error_text(refusal(2, 16, model::Role::down)).find("mlp.down_proj.weight") !=
          std::string::npos);
    CHECK(hint_text(refusal(2, 16, model::Role::down)) ==
          "use fewer ranks, or set model.weights to bf16 or f32, as model.compute");
  }

  TEST_CASE("ranks quantize their parts of numbers to their parts of the codes") {
    model::ModelConfig c = narrow_config();
    c.vocab_size = 100;
    const WeightFormat four(Code::i4, 64, ScaleType::f16, Zero::integer),
        fp8(Code::fp8, 0, ScaleType::f32, Zero::none);
    int n_without = 0;
    for (const WeightFormat& format : {four, fp8})
      for (const int n_ranks : {2, 4})
        for (int rank = 0; rank < n_ranks; ++rank) {
          const model::Shard s = model::shard_of(c, rank, n_ranks, n_ranks == 2 ? 64 : 16);
          const auto source = model::shard_source(
              c, s, model::quantized_source(c, model::synthetic_source(c, 0), [&](model::MatrixId) {
                return format;
              }));
          for (const model::Role role : model::kLayerRoles) {
            CAPTURE(model::word_of(role));
            CAPTURE(format_name(format));
            CAPTURE(n_ranks);
            const auto [numbers, search] = source->unquantized({role});
            // A scale of an entire row is that of all ranks; four ranks cut some groups.
            const model::Shard::Part part = model::own_features(role, c, s);
            const int end = part.first + part.n;
            const bool in_groups = part.first % 64 == 0 && (end % 64 == 0 || end == c.ffn_dim);
            const bool has = !model::ends_in_stream(role) || (format == four && in_groups);
            REQUIRE((numbers != nullptr) == has);
            n_without += has ? 0 : 1;
            if (!has) continue;
            const io::Shape own = model::shape_of(role, model::config_of(c, s));
            std::vector<float> all(static_cast<size_t>(own[0] * own[1]));
            numbers->rows({role}, 0, own[0], DType::f32, all.data());
            std::vector<std::byte> codes(matrix_bytes(format, own[0], own[1]));
            ops::quantize(codes.data(), format, all.data(), own[0], own[1], search);
            CHECK(codes == native_rows(*source, {role}, own[0], own[1]));
          }
        }
    CHECK(n_without > 2 * (2 + 4));  // more than those of fp8
  }

  TEST_CASE("a row's squares are divided by their sum over all ranks' channels") {
    constexpr int kRows = 5, kChannels = 48;
    std::vector<float> x(size_t{kRows} * kChannels), want(kChannels), got(kChannels);
    PhiloxStream draw(7);
    for (float& v : x) v = static_cast<float>(draw.below(1000)) * 1e-3f - 0.5f;
    const int32_t slot = 0, begin[] = {0, kRows};
    const ops::StepArrays step{.n_seqs = 1, .n_rows = kRows, .slot = &slot, .row_begin = begin};
    const auto add = [&](std::vector<float>& rows, int n, float* sums, Comm* comm) {
      std::vector<float> scales(ops::kScaledRows);
      float counted = 0;
      ops::add_squares({.to = {.sums = sums, .rows = &counted},
                        .x = {rows.data(), DType::f32, {kRows, n}},
                        .scales = scales.data(),
                        .comm = comm},
                       step, n);
    };
    add(x, kChannels, want.data(), nullptr);
    const auto results = run_ranks({.size = 3}, [&](ranks::Group& group) {
      set_threads(1);
      constexpr int kOwn = kChannels / 3;
      const int first = group.rank() * kOwn;
      std::vector<float> own;
      for (int r = 0; r < kRows; ++r)
        own.insert(own.end(), x.begin() + r * kChannels + first,
                   x.begin() + r * kChannels + first + kOwn);
      add(own, kOwn, got.data() + first, comm_of(group).get());
    });
    for (const RankResult& r : results) CHECK(r.text == "");
    for (size_t j = 0; j < want.size(); ++j)
      CHECK(got[j] == doctest::Approx(want[j]).epsilon(1e-6));
  }
}
