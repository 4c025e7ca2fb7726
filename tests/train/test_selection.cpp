#include <doctest/doctest.h>

#include <numeric>
#include <set>

#include "base/error.h"
#include "error_text.h"
#include "train/trainer_runs.h"

using namespace tandem;
using namespace tandem::test;
using model::Role;

namespace {

model::ModelConfig shape(int layers, int heads, int kv_heads, int ffn) {
  model::ModelConfig c;
  c.n_layers = layers;
  c.n_heads = heads;
  c.n_kv_heads = kv_heads;
  c.head_dim = 128;
  c.dim = heads * 128;
  c.ffn_dim = ffn;
  c.vocab_size = 32000;
  return c;
}

/// The published budgets.
train::SelectionSpec llama_2_budget() {
  train::SelectionSpec s;
  s.ratio[Role::o] = 0.052;
  s.ratio[Role::down] = 0.02;
  return s;
}

size_t count(const std::vector<train::LayerUnits>& units, Role m) {
  return std::accumulate(units.begin(), units.end(), size_t{0},
                         [&](size_t n, const auto& l) { return n + l[m].size(); });
}

std::string refusal(const train::SelectionSpec& s, const model::ModelConfig& c) {
  try {
    train::select_random(s, c);
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing thrown";
}

}  // namespace

TEST_SUITE("train/selection") {
  TEST_CASE("budgets are the published ones, by layers and over all of them") {
    using Scope = train::SelectionSpec::Scope;
    const model::ModelConfig c7 = shape(32, 32, 32, 11008), c8 = shape(32, 32, 8, 14336);
    for (const Scope scope : {Scope::per_layer, Scope::global}) {
      train::SelectionSpec s = llama_2_budget();
      s.scope = scope;
      const auto units = train::select_random(s, c7);
      CHECK(count(units, Role::o) == 53);
      CHECK(count(units, Role::down) == 7045);
      CHECK(train::slices_of(units, c7).size == 56'643'584);
      s.ratio = {};
      s.ratio[Role::down] = 0.03;
      const auto of_8b = train::select_random(s, c8);
      CHECK(count(of_8b, Role::down) == 13'762);
      CHECK(train::slices_of(of_8b, c8).size == 56'369'152);
    }
  }

  TEST_CASE("what does not divide is spread evenly") {
    // 53 heads of 32 layers: one each, and 21 more. Up to any layer their share is kept to.
    int so_far = 0, layers = 0;
    for (const int n : train::counts_per_layer(0.052, 32, 32)) {
      so_far += n;
      ++layers;
      CHECK(so_far == layers + layers * 21 / 32);
    }
    CHECK(layers == 32);
    CHECK(train::counts_per_layer(0.29, 100, 2) == std::vector<int>{29, 29});
    CHECK(train::counts_per_layer(1, 7, 3) == std::vector<int>{7, 7, 7});
    CHECK(train::counts_per_layer(0.1, 4, 4) == std::vector<int>{0, 0, 0, 1});
  }

  TEST_CASE("random units are distinct, ascending, of the asked layers, and follow the seed") {
    const model::ModelConfig c = shape(6, 16, 4, 500);
    train::SelectionSpec s{.seed = 1, .first_layer = 2, .last_layer = 4};
    s.ratio.fill(0.3);
    const auto units = train::select_random(s, c);
    CHECK(units == train::select_random(s, c));
    for (size_t l = 0; l < 6; ++l)
      for (const Role role : model::kLayerRoles) {
        const std::vector<int32_t>& of = units[l][role];
        if (l < 2 || l > 4) CHECK(of.empty());
        CHECK(std::ranges::adjacent_find(of, std::greater_equal{}) == of.end());
        if (!of.empty()) CHECK(of.back() < model::n_units(role, c));
      }
    CHECK(units[2][Role::v].size() == 1);
    s.seed = 2;
    CHECK(units != train::select_random(s, c));
    // A draw for one matrix does not follow from the ratios of others.
    s.seed = 1;
    s.ratio[Role::q] = 0;
    CHECK(train::select_random(s, c)[3][Role::down] == units[3][Role::down]);
  }

  TEST_CASE("budgets are told in units: heads, KV heads where these are fewer, channels") {
    const model::ModelConfig c = shape(3, 8, 2, 100);
    train::SelectionSpec s;
    s.ratio[Role::o] = s.ratio[Role::v] = s.ratio[Role::k] = 0.5;
    s.ratio[Role::up] = 0.01;
    CHECK(train::budget_text(train::slices_of(train::select_random(s, c), c), c) ==
          "k 3 of 6 KV heads (50 %), v 3 of 6 KV heads (50 %), o 12 of 24 heads (50 %), "
          "u 3 of 300 channels (1 %)");
  }

  TEST_CASE("excluded units are not taken: two adapters can be disjoint") {
    using Scope = train::SelectionSpec::Scope;
    const model::ModelConfig c = shape(3, 8, 4, 100);
    for (const Scope scope : {Scope::per_layer, Scope::global}) {
      train::SelectionSpec s{.scope = scope};
      s.ratio.fill(0.5);
      const auto first = train::select_random(s, c);
      s.excluded = first;
      const auto second = train::select_random(s, c);
      for (const Role role : model::kLayerRoles) {
        CHECK(count(second, role) == count(first, role));
        for (size_t l = 0; l < 3; ++l)
          for (const int32_t unit : second[l][role])
            CHECK(!std::ranges::binary_search(first[l][role], unit));
      }
      s.ratio[Role::v] = 0.75;
      CHECK(refusal(s, c).find("train.select.exclude: leaves") != std::string::npos);
    }
  }

  TEST_CASE("units by score are the smallest or the largest; of equals the first") {
    const model::ModelConfig c = shape(2, 4, 4, 5);
    train::SelectionSpec s;
    s.ratio[Role::down] = 0.4;
    model::PerMatrix<std::vector<std::vector<double>>> scores;
    scores[Role::down] = {{3, 1, 2, 1, 5}, {9, 9, 9, 9, 9}};
    const auto least = train::select_by_score(s, c, scores, false);
    CHECK(least[0][Role::down] == std::vector<int32_t>{1, 3});
    CHECK(least[1][Role::down] == std::vector<int32_t>{0, 1});
    const auto most = train::select_by_score(s, c, scores, true);
    CHECK(most[0][Role::down] == std::vector<int32_t>{0, 4});
    s.scope = train::SelectionSpec::Scope::global;
    const auto over_all = train::select_by_score(s, c, scores, true);
    CHECK(over_all[0][Role::down].empty());
    CHECK(over_all[1][Role::down] == std::vector<int32_t>{0, 1, 2, 3});
  }

  TEST_CASE(
      "heads are whole, those of k and v are KV heads, and slices lie in the packed matrices") {
    const model::ModelConfig c = shape(1, 4, 2, 6);
    std::vector<train::LayerUnits> units(1);
    units[0][Role::q] = {3};
    units[0][Role::v] = {1};
    units[0][Role::o] = {2};
    units[0][Role::gate] = {0};
    units[0][Role::up] = {5};
    const train::TrainedSet set = train::slices_of(units, c);
    const auto& l = set.layers[0];
    CHECK(l[Role::qkv].rows == 256);
    CHECK(l[Role::qkv].index[0] == 3 * 128);
    CHECK(l[Role::qkv].index[128] == (4 + 2 + 1) * 128);
    CHECK(l[Role::o].rows == c.dim);
    CHECK(l[Role::o].cols == 128);
    CHECK(l[Role::o].index[0] == 256);
    CHECK(l[Role::gate_up].index == std::vector<int32_t>{0, 6 + 5});
    CHECK(!l[Role::down].any());
    CHECK(set.size == 256 * 512 + 512 * 128 + 2 * 512);
  }

  TEST_CASE("scores of features are summed over those of a unit") {
    const model::ModelConfig c = trainer_spec("qwen3-odd").config;  // 5 heads and 1 of 10
    std::vector<train::FeatureSquares> squares(1);
    squares[0][Role::qkv].assign(70, 0);
    squares[0][Role::qkv][39] = 16;  // q head 3
    squares[0][Role::qkv][50] = 9;   // k head
    squares[0][Role::qkv][69] = 7;   // v head, with the next
    squares[0][Role::qkv][60] = 18;
    squares[0][Role::o].assign(50, 1);
    squares[0][Role::gate_up].assign(2 * 68, 4);
    squares[0][Role::gate_up][68] = 25;  // up's first
    squares[0][Role::down].assign(68, 49);
    const train::Scores scores = train::scores_of(squares, c);
    CHECK(scores[Role::q][0] == std::vector<double>{0, 0, 0, 4, 0});
    CHECK(scores[Role::k][0] == std::vector<double>{3});
    CHECK(scores[Role::v][0] == std::vector<double>{5});
    CHECK(scores[Role::o][0] == std::vector<double>(5, std::sqrt(10.0)));
    CHECK(scores[Role::gate][0] == std::vector<double>(68, 2));
    CHECK(scores[Role::up][0][0] == 5);
    CHECK(scores[Role::up][0][1] == 2);
    CHECK(scores[Role::down][0] == std::vector<double>(68, 7));
  }

  TEST_CASE("what cannot be selected is refused") {
    const model::ModelConfig c = shape(2, 4, 4, 50);
    train::SelectionSpec s;
    CHECK(refusal(s, c).find("select no unit in 2 layers") != std::string::npos);
    s.ratio[Role::o] = 0.124;
    CHECK(refusal(s, c).find("select no unit in 2 layers") != std::string::npos);
    CHECK(hint_text([&] { train::select_random(s, c); }) ==
          "ratios for one unit of one layer: o: 0.12");
    s.ratio[Role::o] = 0.125;  // one head of eight: of the first or the second layer
    CHECK(count(train::select_random(s, c), Role::o) == 1);
    s.ratio[Role::down] = 0.5;
    s.ratio[Role::o] = NAN;
    CHECK(refusal(s, c).find("train.select.ratios.o") != std::string::npos);
    s.ratio[Role::o] = 0;
    s.last_layer = 2;
    CHECK(refusal(s, c).find("the model has layers 0-1") != std::string::npos);
  }
}

TEST_SUITE("train/scattered") {
  TEST_CASE("single weights are drawn by the seed, as many of each matrix as its share") {
    const model::ModelConfig c = trainer_spec("llama-3.1").config;
    const train::TrainedSet a = train::scattered_set(c, 0.05, 1),
                            b = train::scattered_set(c, 0.05, 1),
                            other = train::scattered_set(c, 0.05, 2);
    const std::vector<int32_t>& qkv = a.layers[1][Role::qkv].index;
    CHECK(qkv == b.layers[1][Role::qkv].index);
    CHECK(qkv != other.layers[1][Role::qkv].index);
    CHECK(qkv != a.layers[2][Role::qkv].index);
    CHECK(std::ranges::adjacent_find(qkv, std::greater_equal{}) == qkv.end());
    const int64_t q = int64_t{c.q_dim()} * c.dim, kv = int64_t{c.kv_dim()} * c.dim;
    const auto of_q = std::ranges::count_if(qkv, [&](int32_t i) { return i < q; });
    CHECK(of_q == static_cast<int64_t>(0.05 * static_cast<double>(q)));
    CHECK(static_cast<int64_t>(qkv.size()) - of_q ==
          2 * static_cast<int64_t>(0.05 * static_cast<double>(kv)));
    CHECK(qkv.back() < q + 2 * kv);
    const std::vector<int32_t> most = train::scattered_set(c, 0.75, 1).layers[0][Role::down].index;
    CHECK(static_cast<int64_t>(most.size()) == int64_t{c.dim} * c.ffn_dim * 3 / 4);
    CHECK(std::ranges::adjacent_find(most, std::greater_equal{}) == most.end());
    CHECK(most.back() < int64_t{c.dim} * c.ffn_dim);
    const train::TrainedSet all = train::scattered_set(c, 1, 1);
    CHECK(all.layers[0][Role::down].size() == int64_t{c.dim} * c.ffn_dim);
    CHECK_THROWS_AS(train::scattered_set(c, 0, 1), Error);
    CHECK_THROWS_AS(train::scattered_set(c, 1e-9, 1), Error);
    CHECK_THROWS_AS(train::scattered_set(c, NAN, 1), Error);
  }
}

TEST_SUITE("train/frontier") {
  TEST_CASE("o and down stop at the first layer's o; nothing below is kept") {
    const model::ModelConfig c = shape(32, 32, 32, 11008);
    train::SelectionSpec s;
    s.ratio[Role::o] = s.ratio[Role::down] = 0.1;
    const train::Frontier f =
        train::frontier_of(train::slices_of(train::select_random(s, c), c), c);
    CHECK(f.first() == 0);
    CHECK(train::describe(f) ==
          "layer 0: backward to wo, keeps attention's output, middle, gate and up\nlayers 1-31: "
          "backward to the input, keeps input, q, k, v, lse, attention's output, middle, gate and "
          "up\n");
  }

  TEST_CASE("layers below the first trained one run as for inference") {
    const model::ModelConfig c = shape(32, 32, 32, 11008);
    train::SelectionSpec s{.first_layer = 16};
    s.ratio[Role::down] = 0.1;
    const train::TrainedSet set = train::slices_of(train::select_random(s, c), c);
    CHECK(set.trainable().from == 16);
    CHECK(train::describe(train::frontier_of(set, c)) ==
          "layers 0-15: inference only\nlayer 16: backward to w_down, keeps gate and up\nlayers "
          "17-31: backward to the input, keeps input, q, k, v, lse, attention's output, middle, "
          "gate and up\n");
  }

  TEST_CASE("activations that are computed again are not kept") {
    const model::ModelConfig c = shape(3, 4, 4, 50);
    train::SelectionSpec s;
    s.ratio[Role::down] = 0.1;
    const train::TrainedSet set = train::slices_of(train::select_random(s, c), c);
    CHECK(
        train::describe(train::frontier_of(set, c, train::Recomputation::ffn)) ==
        "layer 0: backward to w_down, keeps gate and up\nlayers 1-2: backward to the input, keeps "
        "input, q, k, v, lse, attention's output, middle, recomputes gate and up\n");
    // Of listed columns of the gate's output nothing more is kept; of whole inputs all.
    CHECK(train::describe(train::frontier_of(set, c, train::Recomputation::none)) ==
          train::describe(train::frontier_of(set, c, train::Recomputation::light)));
    CHECK(train::describe(train::frontier_of(train::full_set(c), c, train::Recomputation::none)) ==
          "layers 0-2: backward to the input, keeps input, its norm, q, k, v, lse, attention's "
          "output, middle, its norm, gate and up, the gate's output\n");
    CHECK(train::describe(train::frontier_of(set, c, train::Recomputation::layer)) ==
          "layer 0: backward to w_down, keeps gate and up\nlayers 1-2: backward to the input, "
          "keeps input, k, v, recomputes q, lse, attention's output, middle, gate and up\n");
  }

  TEST_CASE("up stops before the norm, v before the input, and everything goes to the bottom") {
    model::ModelConfig c = shape(1, 4, 4, 50);
    c.kinds[0].attention.qk_norm = model::QkNorm::head;
    const auto text = [&](Role m) {
      train::SelectionSpec s;
      s.ratio[m] = 1;
      return train::describe(
          train::frontier_of(train::slices_of(train::select_random(s, c), c), c));
    };
    CHECK(text(Role::up) == "layer 0: backward to gate and up, keeps middle, gate and up\n");
    CHECK(text(Role::v) ==
          "layer 0: backward to q, k and v, keeps input, qkv, q, k, v, lse, attention's output, "
          "middle, gate and up\n");
    CHECK(train::describe(train::frontier_of(train::full_set(c), c)) ==
          "layer 0: backward to the input, keeps input, qkv, q, k, v, lse, attention's output, "
          "middle, gate and up\n");
  }
}
