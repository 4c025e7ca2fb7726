#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "adapters/summary.h"
#include "adapters/written_form.h"
#include "base/error.h"
#include "io/table.h"
#include "model/adapters/low_rank_factors.h"

namespace tandem::adapters {
namespace {

using model::Role;
using Json = nlohmann::ordered_json;

/// Rounding of f32 sums, as a share of the Frobenius norm of their terms.
constexpr double kRounding = 1e-6;

/// Sums of squares: of changes, and of what factors of a rank lose of them.
struct Squares {
  double change = 0, lost = 0;
  void add(const Squares& other) {
    change += other.change;
    lost += other.lost;
  }
  /// Frobenius norm of the loss, as a share of the change's.
  double error() const { return change > 0 ? std::sqrt(lost / change) : 0; }
};

/// The factors of all matrices that change, and what they lose.
struct Export {
  std::vector<model::Factors> factors;
  std::vector<Squares> squares;  // of each
  int64_t rank = 0;              // the largest

  Squares all() const {
    Squares sum;
    for (const Squares& s : squares) sum.add(s);
    return sum;
  }
};

int64_t weights_of(Role weight, const model::ModelConfig& config) {
  const io::Shape shape = model::shape_of(weight, config);
  return shape[0] * shape[1];
}

/// Calls visit(exact factors) for each matrix that changes.
template <class Visit>
void each_exact(const OpenedAdapters& opened, const model::WeightProgress& progress,
                const Visit& visit) {
  std::vector<model::WeightedAdapter> slices;
  for (const model::WeightedAdapter& given : opened.adapters)
    if (std::holds_alternative<model::Adapter>(given.adapter)) slices.push_back(given);
  const auto sliced = opened.merged_with(slices);
  const model::ModelConfig& config = opened.base.config;
  bool any = false;
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Role weight : model::kLayerRoles) {
      model::Factors exact = model::exact_factors(*opened.base.source, *sliced, opened.adapters,
                                                  {weight, layer}, config);
      if (exact.rank > 0) {
        if (!model::is_finite(exact))
          throw make_error(ErrorKind::numeric, model::canonical_name({weight, layer}),
                           "its weighted change overflows f32")
              .hint("give a smaller weight: --adapter FOLDER=WEIGHT");
        any = true;
        visit(std::move(exact));
      }
      model::add_read(progress, weights_of(weight, config));
    }
  if (!any)
    throw input_error(opened.paths.front(), "changes nothing: every weight is 0")
        .hint("give a weight other than 0: --adapter FOLDER=WEIGHT");
}

Export make_export(const OpenedAdapters& opened, int most, const model::WeightProgress& progress) {
  Export made;
  each_exact(opened, progress, [&](model::Factors exact) {
    const int64_t rank = most == 0 ? exact.rank : std::min<int64_t>(most, exact.rank);
    auto shortened = model::shorten_factors(std::move(exact), rank);
    made.rank = std::max(made.rank, shortened.factors.rank);
    made.factors.push_back(std::move(shortened.factors));
    made.squares.push_back({shortened.change, shortened.lost});
  });
  return made;
}

/// The kinds of matrices that have factors, if all of them have in every layer; else none.
std::vector<Role> whole_kinds(const Export& made, const model::ModelConfig& config) {
  std::vector<Role> kinds;
  for (const Role w : model::kLayerRoles) {
    const auto n =
        std::ranges::count(made.factors, w, [](const model::Factors& f) { return f.id.role; });
    if (n == config.n_layers) kinds.push_back(w);
    if (n != 0 && n != config.n_layers) return {};
  }
  return kinds;
}

/// Sums of squares of a matrix: base, change, and change less that of the factors.
struct Compared {
  double base = 0, change = 0, rest = 0;
};

Compared compare(const OpenedAdapters& opened, const model::WeightSource& merged,
                 const model::LowRankAdapter& written, model::MatrixId id) {
  const io::Shape shape = model::shape_of(id.role, opened.base.config);
  Compared sums;
  const auto add = [&](int64_t first, std::span<const float> before, std::span<const float> after) {
    std::vector<float> found(before.begin(), before.end());
    written.merge(id, first, first + std::ssize(before) / shape[1], found);
    for (size_t i = 0; i < before.size(); ++i) {
      const double change = double{after[i]} - before[i], rest = double{after[i]} - found[i];
      sums.base += double{before[i]} * before[i];
      sums.change += change * change;
      sums.rest += rest * rest;
    }
  };
  model::each_piece(*opened.base.source, merged, id, shape, {}, add);
  return sums;
}

/// Reads the folder back, and compares what it makes of each matrix with the adapters merged.
std::string verify_export(const std::filesystem::path& folder, const OpenedAdapters& opened,
                          const Export& made, const model::WeightProgress& progress) {
  const model::ModelConfig& config = opened.base.config;
  const auto written = model::LowRankAdapter::open(folder, config);
  const auto merged = opened.merged();
  Squares all;
  for (int layer = 0; layer < config.n_layers; ++layer)
    for (const Role weight : model::kLayerRoles) {
      const auto it =
          std::ranges::find(made.factors, model::MatrixId{weight, layer}, &model::Factors::id);
      const double loss =
          it == made.factors.end()
              ? 0
              : made.squares[static_cast<size_t>(it - made.factors.begin())].error();
      const Compared sums = compare(opened, *merged, written, {weight, layer});
      all.add({sums.change, sums.rest});
      const double norm = std::sqrt(sums.change),
                   most = loss * norm + kRounding * (norm + std::sqrt(sums.base));
      if (!(std::sqrt(sums.rest) <= most))
        throw make_error(
            ErrorKind::numeric, model::canonical_name({weight, layer}),
            "the written factors differ from its change by {:.3g} of its norm, expected {:.3g}",
            std::sqrt(sums.rest) / norm, loss)
            .hint("a file was changed after it was read, or is damaged: write the folder again");
      model::add_read(progress, weights_of(weight, config));
    }
  return fmt::format("verified factors   read back and merged in f32, relative error {:.3g}\n",
                     all.error());
}

/// What the folder holds, by kind of matrix.
WrittenForm describe(const Export& made, const model::ModelConfig& config) {
  using io::Align;
  WrittenForm form;
  io::Table table({{"matrix", Align::left},
                   {"matrices"},
                   {"norm of change"},
                   {"relative loss"},
                   {"rank", Align::left}});
  auto kinds = nlohmann::ordered_json::array();
  for (const Role weight : model::kLayerRoles) {
    Squares sum;
    std::vector<int> ranks(static_cast<size_t>(config.n_layers));
    int n = 0;
    for (size_t i = 0; i < made.factors.size(); ++i)
      if (const model::Factors& f = made.factors[i]; f.id.role == weight) {
        sum.add(made.squares[i]);
        ranks[static_cast<size_t>(f.id.layer)] = static_cast<int>(f.rank);
        ++n;
      }
    if (n == 0) continue;
    table.add_row({model::word_of(weight), fmt::format("{}", n),
                   fmt::format("{:.4g}", std::sqrt(sum.change)),
                   fmt::format("{:.3g} %", 100 * sum.error()), counts_text(ranks)});
    kinds.push_back({{"matrix", model::word_of(weight)},
                     {"ranks", ranks},
                     {"change_norm", std::sqrt(sum.change)},
                     {"error", sum.error()}});
  }
  const double error = made.all().error();
  form.text = fmt::format("factors  of {} matrices, rank {} at most; {}\n{}", made.factors.size(),
                          made.rank,
                          error > 0 ? fmt::format("{:.3g} % of the change is lost", 100 * error)
                                    : std::string("exact up to rounding to f32"),
                          table.render(io::TableFormat::text));
  form.json = {{"rank", made.rank}, {"error", error}, {"matrices", std::move(kinds)}};
  return form;
}

/// errors   kind input: no matrix that changes has as many rows and columns
void check_rank(const OpenedAdapters& opened, int rank) {
  const model::ModelConfig& config = opened.base.config;
  int64_t most = 0;
  for (const model::WeightedAdapter& given : opened.adapters)
    for (int layer = 0; layer < config.n_layers; ++layer)
      for (const Role w : model::kLayerRoles)
        if (given.weight != 0 && model::holds(given.adapter, {w, layer}))
          most = std::max(most, std::ranges::min(model::shape_of(w, config)));
  if (most > 0 && rank > most)
    throw input_error("adapter.rank", "is {}, but no changed matrix has a rank above {}", rank,
                      most)
        .hint("lower --rank, or leave it out for exact factors");
}

/// errors   kind input: an adapter whose change has no factors
void check_kinds(const OpenedAdapters& opened) {
  for (size_t i = 0; i < opened.adapters.size(); ++i) {
    const auto* low = std::get_if<model::LowRankAdapter>(&opened.adapters[i].adapter);
    if (low == nullptr) continue;
    if (low->scales_rows())
      throw input_error(opened.paths[i], "writing a DoRA adapter as LoRA factors is not supported")
          .hint("merge it with --to model; the adapter itself is already a PEFT folder");
    if (const std::vector<std::string> others = low->others(); !others.empty())
      throw input_error(opened.paths[i], "expected factors of layers only, but it also changes {}",
                        others.front())
          .hint("merge it with --to model; the adapter itself is already a PEFT folder");
  }
}

}  // namespace

WrittenForm describe_ranks(const OpenedAdapters& opened, std::span<const int> ranks,
                           io::TableFormat format, const model::WeightProgress& progress) {
  check_kinds(opened);
  std::vector<Squares> squares(ranks.size());
  std::vector<int64_t> values(ranks.size());  // of the factors
  int64_t exact_rank = 0;
  each_exact(opened, progress, [&](const model::Factors& exact) {
    const std::vector<double> singular = model::singular_values(exact);
    exact_rank = std::max(exact_rank, exact.rank);
    for (size_t i = 0; i < ranks.size(); ++i) {
      const int64_t rank = std::min<int64_t>(ranks[i], exact.rank);
      Squares of;
      for (size_t k = singular.size(); k-- > 0;) {
        const double square = singular[k] * singular[k];
        of.add({square, k < static_cast<size_t>(rank) ? 0 : square});
      }
      squares[i].add(of);
      values[i] += static_cast<int64_t>(exact.a.size() + exact.b.size()) / exact.rank * rank;
    }
  });
  io::Table table({{"rank"}, {"relative loss"}, {"values"}});
  WrittenForm form{.text = {}, .json = {{"exact_rank", exact_rank}, {"ranks", Json::array()}}};
  for (size_t i = 0; i < ranks.size(); ++i) {
    const double error = squares[i].error();
    table.add_row({fmt::format("{}", ranks[i]), fmt::format("{:.3g} %", 100 * error),
                   fmt::format("{}", values[i])});
    form.json["ranks"].push_back({{"rank", ranks[i]}, {"error", error}, {"values", values[i]}});
  }
  form.text = fmt::format("exact    at rank {}\n{}{}", exact_rank,
                          format == io::TableFormat::markdown ? "\n" : "", table.render(format));
  return form;
}

WrittenForm write_lora_form(const std::filesystem::path& folder, const OpenedAdapters& opened,
                            const AdapterSettings& settings,
                            const model::WeightProgress& progress) {
  check_kinds(opened);
  check_rank(opened, settings.rank);
  const Export made = make_export(opened, settings.rank, progress);
  if (const double error = made.all().error(); error > settings.max_error)
    throw make_error(ErrorKind::numeric, "adapter.max_error",
                     "factors of rank {} lose {:.3g} of the change, expected at most {}",
                     settings.rank, error, settings.max_error)
        .hint("raise --rank, or leave it out for exact factors");
  const model::ModelConfig& config = opened.base.config;
  model::write_low_rank_adapter(folder,
                                {.base = opened.base_path,
                                 .rank = made.rank,
                                 .alpha = static_cast<double>(made.rank),
                                 .targets = whole_kinds(made, config)},
                                model::factor_views(made.factors), config);
  WrittenForm form = describe(made, config);
  if (settings.verify) form.text += verify_export(folder, opened, made, progress);
  return form;
}

}  // namespace tandem::adapters
