#include "tools/draft_acceptance/point.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/model_report.h"
#include "bench/speculation/measured_report.h"
#include "decode/suggested_sampling.h"
#include "kv/scoped_slots.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {
namespace {

using bench::Json;
using Point = AcceptancePoint::Point;

std::string kind_name(PromptKind kind) {
  return std::string(enum_names(kind)[static_cast<size_t>(kind)]);
}

std::string phase_of(const speculate::NamedDraft& draft, double temperature) {
  return fmt::format("{} T {:g}", draft.name, temperature);
}

bench::Record record_of(const std::string& tool, const Point& point, const std::string& phase) {
  const DraftAcceptanceRecipe& r = point.recipe;
  bench::Record record = named(bench::Record(tool), point);
  record.group("workload") = {{"phase", phase},
                              {"batch", r.run.batch},
                              {"prompts", kind_name(r.bench.prompts)},
                              {"prompt_tokens", r.run.context.value},
                              {"context_tokens", r.run.context.value},
                              {"new_tokens", r.bench.new_tokens},
                              {"gamma", r.spec.gamma}};
  return record;
}

bench::BenchSizes sizes_of(const DraftAcceptanceRecipe& r) {
  return {.batch = r.run.batch,
          .context = static_cast<int>(r.run.context.value),
          .new_tokens = r.bench.new_tokens};
}

using bench::at;
using bench::cell;

/// "0.784 +- 0.029" of a group that has alpha.
std::string alpha_cell(const Json& group) {
  const Json &alpha = at(group, "/alpha"), &error = at(group, "/alpha_stderr");
  return cell(alpha, "{:.3f}") + (error.is_number() ? " +- " + cell(error, "{:.3f}") : "");
}

std::vector<std::string> acceptance_row(const Json& r) {
  const Json &work = at(r, "/workload"), &acceptance = at(r, "/acceptance"),
             &drafted = at(acceptance, "/drafted"), &draft = at(work, "/draft/name");
  std::vector<std::string> cells = {cell(at(work, "/prompts")), cell(at(work, "/context_tokens")),
                                    draft.is_null() ? "all" : cell(draft),
                                    cell(at(work, "/temperature"), "{:g}")};
  if (const std::string failure = bench::failure_of(r); !failure.empty()) {
    cells.push_back(failure);
    return cells;
  }
  std::string rates;
  for (const Json& rate : at(drafted, "/rate_by_position"))
    rates += (rates.empty() ? "" : " ") + fmt::format("{:.2f}", rate.get<double>());
  cells.insert(cells.end(),
               {alpha_cell(at(acceptance, "/tested")), alpha_cell(at(acceptance, "/tested/answer")),
                alpha_cell(drafted), alpha_cell(at(acceptance, "/within")),
                cell(at(drafted, "/mean_tokens_per_round"), "{:.2f}"),
                cell(at(drafted, "/share_accepted"), "{:.3f}"), rates});
  return cells;
}

}  // namespace

std::vector<bench::RecordView> AcceptancePoint::views() {
  return {{.tools = {"magicdec-acceptance"},
           .takes = [](const Json&) { return true; },
           .columns = {{"prompts", io::Align::left},
                       {"context"},
                       {"draft", io::Align::left},
                       {"T"},
                       {"tested"},
                       {"answer"},
                       {"drafted"},
                       {"inner"},
                       {"tokens/step"},
                       {"acc/drafted"},
                       {"rate by position"}},
           .row = acceptance_row}};
}

AcceptancePoint::AcceptancePoint(cli::Context& cx, const Point& point)
    : cx_(cx),
      point_(point),
      engines_(point.recipe.model, recipe::Cache{}, point.recipe.run, sizes_of(point.recipe), cx) {
  if (engines_.device().kind == Device::Kind::cuda)
    throw recipe_error("run.device",
                       "expected cpu, found {}: distributions are compared only on the CPU",
                       engines_.device().name())
        .hint("add --device cpu");
}

void AcceptancePoint::fail(const cli::Context& cx, BenchResults& results, const Point& point,
                           const speculate::NamedDraft* draft, const Error& error) {
  bench::Record record = record_of(cx.info.name, point, draft != nullptr ? draft->name : "point");
  if (draft != nullptr) record.group("workload")["draft"] = speculate::draft_json(*draft);
  results.add_failure(std::move(record), error);
}

bench::Way AcceptancePoint::way_of(const speculate::NamedDraft& draft) const {
  const ChainLength& spec = point_.recipe.spec;
  bench::Way way{.draft = draft, .tree = speculate::chain_tree(spec.gamma + 1)};
  if (draft.kind != speculate::DraftKind::nested) return way;
  bench::NestedWay& nested = way.nested.emplace(bench::NestedWay::of(draft, bench().all_drafts()));
  nested.tree = speculate::chain_tree(spec.gamma1 + 1);
  nested.shape = spec.nested();
  way.tree = nested.chain();
  return way;
}

void AcceptancePoint::RoundFigures::add(const speculate::RoundStats& stats) {
  if (counts)
    counts->add(stats);
  else
    counts = stats;
}

Json AcceptancePoint::RoundFigures::json() const {
  Json j = bench::counts_json(*counts);
  j.update({{"tested", counts->tested}, {"alpha", counts->share_of_tested()}});
  return j;
}

void AcceptancePoint::admit(
    const std::function<void(const speculate::NamedDraft&, const Error&)>& refused,
    const BenchResults* earlier) {
  const int gamma = point_.recipe.spec.gamma;
  for (const speculate::NamedDraft& draft : bench().all_drafts()) {
    if (earlier != nullptr && std::ranges::all_of(bench().temperatures, [&](double t) {
          return earlier->has(point_.id, phase_of(draft, t));
        }))
      continue;
    try {
      const bench::Way way = way_of(draft);
      if (!way.nested) engines_.add_reader(draft, gamma + 1);
      if (bench().speculate) engines_.add(way);
      const Figures none{.tested = TestedAcceptance(gamma, bench().new_tokens),
                         .rounds = {speculate::ChainMeter(way.gamma(), way.nested.has_value())},
                         .by_output = AcceptanceByOutput(bench().new_tokens)};
      Measured& m = drafts_.emplace_back(Measured{.draft = draft, .way = way});
      m.at.assign(bench().temperatures.size(), none);
      for (Figures& at : m.at)
        if (way.nested) at.within = {speculate::ChainMeter(way.nested->tree.levels() - 1)};
    } catch (const Error& e) {
      refused(draft, e);
    }
  }
  const size_t row_bytes =
      static_cast<size_t>(engines_.target_files().config.vocab_size) * sizeof(float);
  const auto rows = static_cast<size_t>(gamma * point_.recipe.run.batch);
  // Logits of all drafts and the target, and the target's distributions in f64.
  engines_.add_buffer("speculation/compared distributions",
                      rows * row_bytes * (drafts_.size() + 1 + 2 * bench().temperatures.size()));
  engines_.size();
}

decode::GenerateSpec AcceptancePoint::generation(double temperature, int64_t seed, int max_tokens) {
  decode::Engine& target = engines_.target();
  recipe::Sampling sampling;
  sampling.temperature = temperature;
  decode::GenerateSpec how =
      decode::generate_spec(sampling, seed, 0, target.config(), target.spec().max_tokens);
  how.max_tokens = max_tokens;
  how.stop_ids.clear();  // all sequences are of one length
  return how;
}

void AcceptancePoint::complete(std::vector<MeasuredText>& texts, const bench::PromptSlots& slots,
                               int64_t seed) {
  const auto wanted = static_cast<size_t>(bench().new_tokens);
  size_t shortest = wanted;
  std::vector<decode::Request> requests = slots.requests();
  for (size_t i = 0; i < texts.size(); ++i) {
    shortest = std::min(shortest, texts[i].next.size());
    requests[i].tokens.insert(requests[i].tokens.end(), texts[i].next.begin(), texts[i].next.end());
  }
  if (shortest < wanted) {
    const auto decoder = decode::plain_decoder(engines_.target());
    decode::GenerateEvents events;
    events.on_token = [&](const decode::TokenEvent& e) {
      texts[static_cast<size_t>(e.seq)].next.push_back(e.id);
    };
    events.interrupted = cli::is_interrupted;
    decode::generate(engines_.target(), *decoder, requests,
                     generation(1, seed, static_cast<int>(wanted - shortest)), events);
  }
  for (MeasuredText& text : texts) {
    text.next.resize(std::min(wanted, text.next.size()));
    text.answer = std::min(text.answer, static_cast<int>(text.next.size()));
  }
}

void AcceptancePoint::force(const std::vector<Measured*>& drafts, const bench::PromptSlots& slots,
                            const std::vector<MeasuredText>& texts) {
  if (drafts.empty()) return;
  std::vector<speculate::Reader> readers;
  for (const Measured* m : drafts) readers.push_back(engines_.drafter(m->draft));
  std::vector<eval::Ids> whole;
  std::vector<speculate::ForcedText> forced;
  for (const MeasuredText& text : texts) {
    eval::Ids& ids = whole.emplace_back(text.prompt);
    ids.insert(ids.end(), text.next.begin(), text.next.end());
  }
  for (size_t i = 0; i < texts.size(); ++i)
    forced.push_back({whole[i], static_cast<int>(texts[i].prompt.size())});
  kv::Cache& cache = engines_.target().cache();
  kv::ScopedSlots forks(cache);
  for (const int slot : slots.slots()) forks.fork(slot, cache.all_readers());
  speculate::ForcedMeter meter(engines_.target(), readers, bench().temperatures,
                               point_.recipe.spec.gamma);
  const auto overlaps = meter.read(forks.all(), forced);
  for (size_t d = 0; d < drafts.size(); ++d)
    for (size_t t = 0; t < overlaps[d].size(); ++t)
      for (size_t i = 0; i < texts.size(); ++i)
        drafts[d]->at[t].tested.add(overlaps[d][t][i], texts[i].answer);
}

void AcceptancePoint::run_rounds(Measured& draft, size_t temperature,
                                 const std::vector<MeasuredText>& texts,
                                 const bench::PromptSlots& slots, int64_t seed) {
  Figures& figures = draft.at[temperature];
  speculate::RoundOptions options{.verify = speculate::VerifyChoice::sequoia};
  options.on_verified = [&](const speculate::Round& round, const Tensor& logits) {
    figures.rounds.chances.add(round, logits);
  };
  speculate::WithinOptions within{.verify = speculate::VerifyChoice::sequoia};
  if (figures.within)
    within.on_verified = [&](const speculate::Round& round, const Tensor& logits) {
      figures.within->chances.add(round, logits);
    };
  const size_t before = figures.rounds.chances.rounds().size();
  const auto rounds = engines_.rounds(draft.way, std::move(within), std::move(options));
  decode::GenerateEvents events;
  events.interrupted = cli::is_interrupted;
  decode::generate(engines_.target(), *rounds, slots.requests(),
                   generation(bench().temperatures[temperature], seed, bench().new_tokens), events);
  figures.rounds.add(rounds->stats());
  if (figures.within) figures.within->add(*rounds->stats_within());
  const auto& all = figures.rounds.chances.rounds();
  for (size_t i = before; i < all.size(); ++i) {
    const auto prompt = static_cast<int>(texts[static_cast<size_t>(all[i].seq)].prompt.size());
    figures.by_output.add(all[i].position - prompt, all[i]);
  }
}

void AcceptancePoint::measure(std::vector<MeasuredText>& texts, int64_t seed,
                              const std::function<void()>& count,
                              const std::function<void(const Measured&)>& done) {
  std::vector<eval::Ids> prompts;
  for (const MeasuredText& text : texts) prompts.push_back(text.prompt);
  const bench::PromptSlots slots(engines_.target(), prompts, false);
  complete(texts, slots, seed);
  const auto attempt_draft = [&](Measured& m, const std::function<void()>& work) {
    if (!m.error && !attempt(cx_, work, [&](const Error& e) { m.error = e; }))
      throw Error(ErrorKind::interrupted, "", "interrupted");
  };
  std::vector<Measured*> own;
  for (Measured& m : drafts_)
    if (m.draft.shares_cache()) own.push_back(&m);
  force(own, slots, texts);
  count();
  for (Measured& m : drafts_)
    if (m.draft.proposes_by_model() && !m.draft.shares_cache())
      attempt_draft(m, [&] { force({&m}, slots, texts); });
  for (Measured& m : drafts_) {
    for (size_t t = 0; bench().speculate && t < m.at.size(); ++t) {
      attempt_draft(m, [&] { run_rounds(m, t, texts, slots, seed); });
      count();
    }
    done(m);
  }
}

void AcceptancePoint::run(BenchResults& results) {
  if (drafts_.empty()) return;
  const DraftAcceptanceRecipe& r = point_.recipe;
  MeasuredTexts texts = measured_texts(r, engines_.target_files());
  engines_.load(cx_);
  double runs = 1;
  for (const Measured& m : drafts_)
    runs += bench().speculate ? static_cast<double>(m.at.size()) : 0;
  cli::Progress progress(
      cx_.terminal, fmt::format("{} at {} tokens", kind_name(r.bench.prompts), r.run.context.value),
      runs * static_cast<double>(texts.batches.size()), "runs");
  double n_done = 0;
  const auto count = [&] {
    if (!progress.go_on(++n_done)) throw Error(ErrorKind::interrupted, "", "interrupted");
  };
  // At once, so that a run that is stopped keeps the drafts that are done.
  const auto report_last = [&](size_t b, const Measured& draft) {
    if (b + 1 == texts.batches.size()) report(results, texts, draft);
  };
  for (size_t b = 0; b < texts.batches.size(); ++b)
    measure(texts.batches[b], r.run.seed + static_cast<int64_t>(b), count,
            [&](const Measured& draft) { report_last(b, draft); });
}

void AcceptancePoint::report(BenchResults& results, const MeasuredTexts& texts, const Measured& m) {
  const DraftAcceptanceRecipe& r = point_.recipe;
  if (m.error) return fail(cx_, results, point_, &m.draft, *m.error);
  decode::Engine& target = engines_.target();
  for (size_t t = 0; t < m.at.size(); ++t) {
    const double temperature = bench().temperatures[t];
    const std::string phase = phase_of(m.draft, temperature);
    if (results.has(point_.id, phase)) continue;
    bench::Record record = record_of(cx_.info.name, point_, phase);
    record.group("model") = {{"name", target.files().name},
                             {"dtype", dtype_name(target.model().options().dtype)}};
    if (m.draft.kind == speculate::DraftKind::model)
      record.group("model")["draft"] = m.draft.path.value;
    record.group("workload")
        .update({{"temperature", temperature},
                 {"draft", speculate::draft_json(m.draft)},
                 {"device", target.spec().device.name()},
                 {"dataset", texts.source},
                 {"n_prompts", r.run.batch * bench().batches},
                 {"distinct_prompts", texts.distinct},
                 {"prompts_overlap", texts.overlap},
                 {"batches", bench().batches},
                 {"seed", r.run.seed}});
    const Figures& figures = m.at[t];
    Json& acceptance = record.group("acceptance");
    if (!m.way.nested) acceptance["tested"] = figures.tested.json();
    if (bench().speculate) {
      const DraftedAcceptance drafted(figures.rounds.chances.rounds());
      acceptance["drafted"] = drafted.json();
      acceptance["drafted"]["by_output"] = figures.by_output.json();
      Json& spec = record.group("spec");
      spec = figures.rounds.json();
      if (m.way.nested) {
        const ChainLength& shape = r.spec;
        spec.update({{"gamma1", shape.gamma1},
                     {"gamma2", shape.gamma2},
                     {"rounds_each", shape.inner_steps}});
        acceptance["within"] = DraftedAcceptance(figures.within->chances.rounds()).json();
        spec["within"] = figures.within->json();
      } else {
        spec["gamma"] = r.spec.gamma;
      }
    }
    results.add(record);
  }
}

}  // namespace tandem::tools
