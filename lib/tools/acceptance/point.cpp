#include "tools/acceptance/point.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/model_report.h"
#include "bench/speculation/measured_report.h"
#include "cli/output.h"
#include "decode/generate_prompts.h"
#include "decode/suggested_sampling.h"
#include "kv/policy.h"
#include "kv/scoped_slots.h"
#include "model/spec/context.h"
#include "recipe/fields_of.h"
#include "speculate/measure/tree_meter.h"
#include "speculate/tree/tree_file.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {
namespace {

using bench::Json;
using Point = AcceptancePoint::Point;

std::string kind_name(PromptKind kind) {
  return std::string(enum_names(kind)[static_cast<size_t>(kind)]);
}

bench::Record record_of(const std::string& tool, const Point& point, const std::string& phase) {
  const AcceptanceRecipe& r = point.recipe;
  bench::Record record = named(bench::Record(tool), point);
  record.group("workload") = {{"phase", phase},
                              {"batch", r.run.batch},
                              {"prompts", kind_name(r.bench.prompts)},
                              {"prompt_tokens", r.run.context.value},
                              {"context_tokens", r.run.context.value},
                              {"new_tokens", r.n_new()},
                              {"gamma", r.spec.gamma}};
  return record;
}

/// Returns no sizes for given prompts, which set them once they are read.
bench::BenchSizes sizes_of(const AcceptanceRecipe& r) {
  if (r.has_given_prompts()) return {};
  return {.batch = r.run.batch,
          .context = static_cast<int>(r.run.context.value),
          .new_tokens = r.bench.new_tokens};
}

std::vector<eval::Ids> prompts_of(const MeasuredTexts& texts) {
  std::vector<eval::Ids> prompts;
  for (const auto& batch : texts.batches)
    for (const MeasuredText& text : batch) prompts.push_back(text.prompt);
  return prompts;
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
  const auto places = [](const Json& rates) {
    std::string text;
    for (const Json& rate : rates)
      text += (text.empty() ? "" : " ") + fmt::format("{:.2f}", rate.get<double>());
    return text;
  };
  cells.insert(
      cells.end(),
      {alpha_cell(at(acceptance, "/tested")), alpha_cell(at(acceptance, "/tested/answer")),
       alpha_cell(drafted), alpha_cell(at(acceptance, "/within")),
       cell(at(drafted, "/mean_tokens_per_round"), "{:.2f}"),
       cell(at(drafted, "/share_accepted"), "{:.3f}"), places(at(drafted, "/rate_by_position"))});
  if (const Json& vector = at(acceptance, "/vector"); vector.is_object())
    cells.push_back(places(vector.contains("p") ? vector["p"] : vector["rows"][0]));
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
                       {"rate by position"},
                       {"by child"}},
           .row = acceptance_row}};
}

AcceptancePoint::AcceptancePoint(cli::Context& cx, const Point& point)
    : cx_(cx),
      point_(point),
      engines_(point.recipe.model, recipe::Cache{}, point.recipe.run, sizes_of(point.recipe), cx),
      sampling_(settled_sampling(cx, point.recipe.sampling, engines_.target_files())),
      temperatures_(bench().temperatures) {
  if (temperatures_.empty()) temperatures_ = {sampling_.temperature.value_or(0)};
  if (bench().rates && (engines_.device().kind == Device::Kind::cuda || engines_.n_ranks() > 1))
    throw recipe_error("run.device",
                       "expected cpu, found {}{}: distributions are compared only on the CPU",
                       engines_.device().name(), engines_.n_ranks() > 1 ? " and several ranks" : "")
        .hint("add --device cpu and start one process");
  if (point.recipe.accept.width > 0) check_vector();
  if (point.recipe.has_given_prompts())
    read_given();
  else if (!prompt_source(cx, point.recipe.chat, true).empty())
    throw usage_error("prompt", "expected no prompt, since bench.prompts is {}",
                      kind_name(bench().prompts))
        .hint("add -s bench.prompts=given, or leave the prompt out");
}

void AcceptancePoint::check_vector() {
  const AcceptSettings& accept = point_.recipe.accept;
  const int vocab = engines_.target_files().config.vocab_size;
  if (accept.width > vocab)
    throw recipe_error("accept.width", "is {}, but the vocabulary has only {} tokens", accept.width,
                       vocab);
  const bool on_gpu = engines_.device().kind == Device::Kind::cuda;
  if (is_by_sequences(accept.rule) && on_gpu)
    throw recipe_error("accept.rule", "is {}, which is supported only on the CPU",
                       recipe::yaml_text(accept.rule))
        .hint("add --device cpu");
  if (!accept.record.empty() && on_gpu)
    throw recipe_error("accept.record", "recording is supported only on the CPU")
        .hint("add --device cpu");
  if (!accept.record.empty() && !cx_.dry_run()) cli::check_new_file(accept.record, cx_.file_mode());
  if (accept.tree.empty()) return;
  if (accept.rule == AcceptRule::topk && std::ranges::max(temperatures_) > 0)
    throw recipe_error("accept.rule", "topk does not support accept.tree at a temperature above 0")
        .hint("leave topk out");
  tree_ = speculate::read_tree(accept.tree).tree;
  if (tree_->size() < 2 || tree_->size() > kv::kMaxTreeRows)
    throw input_error(accept.tree.string(), "has {} nodes, expected 2 to {}", tree_->size(),
                      kv::kMaxTreeRows);
  if (const int most = std::ranges::max(tree_->n_children); most > accept.width)
    throw recipe_error("accept.width", "is {}, but a node of {} has {} children", accept.width,
                       accept.tree.string(), most);
  (void)speculate::rule_for(verify_choice(accept.rule), true, *tree_, false);
}

void AcceptancePoint::read_given() {
  constexpr int kLeastNew = 2;
  const AcceptanceRecipe& r = point_.recipe;
  const int context = model::context_of(r.run, engines_.target_files().config);
  const decode::PromptSource source = prompt_source(cx_, r.chat);
  decode::PromptSet prompts;
  if (!source.empty())
    prompts = decode::read_prompts(source, engines_.target_files(), false,
                                   {.context = context, .least_new = kLeastNew});
  prompts.shared = 0;
  require_same(cx_, prompts);
  const decode::SequenceRoom room = decode::room_for(prompts, {.context = context,
                                                               .max_tokens = r.sampling.max_tokens,
                                                               .least_new = kLeastNew,
                                                               .batch = std::max(1, r.run.batch)});
  which_prompts_ = " after " + decode::fingerprint_of(prompts);
  given_ = std::move(prompts.sequences);
  size_t longest = 1;
  for (const eval::Ids& ids : given_) longest = std::max(longest, ids.size());
  const int n_new =
      std::min(r.sampling.max_tokens, static_cast<int>(room.longest) - static_cast<int>(longest));
  engines_.resize({.batch = room.batch,
                   .context = static_cast<int>(room.longest) - n_new,
                   .new_tokens = n_new});
}

void AcceptancePoint::fail(const cli::Context& cx, BenchResults& results, const Point& point,
                           const speculate::NamedDraft* draft, const Error& error) {
  bench::Record record = record_of(cx.info.name, point, draft != nullptr ? draft->name : "point");
  if (draft != nullptr) record.group("workload")["draft"] = speculate::draft_json(*draft);
  results.add_failure(std::move(record), error);
}

bench::Way AcceptancePoint::way_of(const speculate::NamedDraft& draft) const {
  const AcceptanceSpec& spec = point_.recipe.spec;
  bench::Way way{.draft = draft, .tree = speculate::chain_tree(spec.gamma + 1)};
  if (draft.kind != speculate::DraftKind::nested) return way;
  bench::NestedWay& nested =
      way.nested.emplace(bench::NestedWay::of(draft, point_.recipe.drafts()));
  nested.tree = speculate::chain_tree(spec.gamma1 + 1);
  nested.shape = spec.nested();
  way.tree = nested.chain();
  return way;
}

bench::Way AcceptancePoint::tree_way(const speculate::NamedDraft& draft) const {
  bench::Way way{.draft = draft};
  if (!tree_) return way;
  way.tree = *tree_;
  way.draft.tree.path = point_.recipe.accept.tree;
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
  const int gamma = point_.recipe.spec.gamma, batch = engines_.sizes().batch;
  for (const speculate::NamedDraft& draft : point_.recipe.drafts()) {
    if (earlier != nullptr && std::ranges::all_of(temperatures_, [&](double t) {
          return earlier->has(point_.id, phase_of(draft, t));
        }))
      continue;
    try {
      const bench::Way way = way_of(draft);
      if (bench().rates && !way.nested) engines_.add_reader(draft, gamma + 1);
      if (bench().rates && bench().speculate) engines_.add(way);
      if (point_.recipe.accept.width > 0)
        engines_.add_reader(draft, (speculate::TreeMeter::kRowsAtOnce - 1) / batch + 1);
      if (tree_) engines_.add(tree_way(draft));
      const Figures none{.tested = TestedAcceptance(gamma, engines_.sizes().new_tokens),
                         .rounds = {speculate::ChainMeter(way.gamma(), way.nested.has_value())},
                         .by_output = AcceptanceByOutput(engines_.sizes().new_tokens)};
      Measured& m = drafts_.emplace_back(Measured{.draft = draft, .way = way});
      m.at.assign(temperatures_.size(), none);
      for (Figures& at : m.at)
        if (way.nested) at.within = {speculate::ChainMeter(way.nested->tree.levels() - 1)};
    } catch (const Error& e) {
      refused(draft, e);
    }
  }
  const size_t row_bytes =
      static_cast<size_t>(engines_.target_files().config.vocab_size) * sizeof(float);
  // Logits of all drafts and the target, and the target's distributions in f64.
  if (bench().rates)
    engines_.add_buffer("speculation/compared distributions",
                        static_cast<size_t>(gamma * batch) * row_bytes *
                            (drafts_.size() + 1 + 2 * temperatures_.size()));
  if (point_.recipe.accept.width > 0)
    engines_.add_buffer("speculation/logits of both models",
                        size_t{2} * speculate::TreeMeter::kRowsAtOnce * row_bytes);
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
  const auto wanted = static_cast<size_t>(engines_.sizes().new_tokens);
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
  speculate::ForcedMeter meter(engines_.target(), readers, temperatures_, point_.recipe.spec.gamma);
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
                   generation(temperatures_[temperature], seed, engines_.sizes().new_tokens),
                   events);
  figures.rounds.add(rounds->stats());
  if (figures.within) figures.within->add(*rounds->stats_within());
  const auto& all = figures.rounds.chances.rounds();
  for (size_t i = before; i < all.size(); ++i) {
    const auto prompt = static_cast<int>(texts[static_cast<size_t>(all[i].seq)].prompt.size());
    figures.by_output.add(all[i].position - prompt, all[i]);
  }
}

void AcceptancePoint::attempt_draft(Measured& m, const std::function<void()>& work) {
  if (!m.error && !attempt(cx_, work, [&](const Error& e) { m.error = e; }))
    throw Error(ErrorKind::interrupted, "", "interrupted");
}

void AcceptancePoint::measure(std::vector<MeasuredText>& texts, int64_t seed,
                              const std::function<void()>& count,
                              const std::function<void(const Measured&)>& done) {
  std::vector<eval::Ids> prompts;
  for (const MeasuredText& text : texts) prompts.push_back(text.prompt);
  const bench::PromptSlots slots(engines_.target(), prompts, false);
  complete(texts, slots, seed);
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
  const AcceptanceRecipe& r = point_.recipe;
  MeasuredTexts texts = measured_texts(r, engines_.target_files(), given_);
  engines_.load(cx_);
  if (r.accept.width > 0) {
    const std::vector<eval::Ids> prompts = prompts_of(texts);
    for (Measured& m : drafts_)
      for (size_t t = 0; t < m.at.size(); ++t)
        attempt_draft(m, [&] { m.at[t].vector = vector_of(m.draft, temperatures_[t], prompts); });
  }
  if (!bench().rates) {
    for (const Measured& m : drafts_) report(results, texts, m);
    return;
  }
  double runs = 1;
  for (const Measured& m : drafts_)
    runs += bench().speculate ? static_cast<double>(m.at.size()) : 0;
  cli::Progress progress(
      cx_.terminal,
      fmt::format("{} at {} tokens", kind_name(r.bench.prompts), engines_.sizes().context),
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
  const AcceptanceRecipe& r = point_.recipe;
  if (m.error) return fail(cx_, results, point_, &m.draft, *m.error);
  decode::Engine& target = engines_.target();
  for (size_t t = 0; t < m.at.size(); ++t) {
    const double temperature = temperatures_[t];
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
                 {"prompt_tokens", engines_.sizes().context},
                 {"batch", engines_.sizes().batch},
                 {"context_tokens", engines_.sizes().context},
                 {"new_tokens", engines_.sizes().new_tokens},
                 {"n_prompts", prompts_of(texts).size()},
                 {"distinct_prompts", texts.distinct},
                 {"prompts_overlap", texts.overlap},
                 {"batches", texts.batches.size()},
                 {"seed", r.run.seed}});
    const Figures& figures = m.at[t];
    Json& acceptance = record.group("acceptance");
    if (!figures.vector.is_null()) acceptance["vector"] = figures.vector;
    if (bench().rates && !m.way.nested) acceptance["tested"] = figures.tested.json();
    if (bench().rates && bench().speculate) {
      const DraftedAcceptance drafted(figures.rounds.chances.rounds());
      acceptance["drafted"] = drafted.json();
      acceptance["drafted"]["by_output"] = figures.by_output.json();
      Json& spec = record.group("spec");
      spec = figures.rounds.json();
      if (m.way.nested) {
        const AcceptanceSpec& shape = r.spec;
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

Json AcceptancePoint::vector_of(const speculate::NamedDraft& draft, double temperature,
                                const std::vector<eval::Ids>& prompts) {
  const bench::BenchSizes& sizes = engines_.sizes();
  recipe::Sampling sampling = sampling_;
  sampling.temperature = temperature;
  sampling.max_tokens = point_.recipe.n_new();
  const bench::Way way = tree_way(draft);
  VectorSpec spec{
      .accept = point_.recipe.accept,
      .tree = tree_,
      .way = way,
      .temperature = temperature,
      .top_p = sampling.top_p.value_or(1),
      .how = decode::generate_spec(sampling, point_.recipe.run.seed, 0, engines_.target().config(),
                                   sizes.context + sizes.new_tokens)};
  spec.how.max_active = sizes.batch;
  return measure_vector(cx_, engines_, spec, prompts);
}

Json AcceptancePoint::vector() {
  const MeasuredTexts texts = measured_texts(point_.recipe, engines_.target_files(), given_);
  engines_.load(cx_);
  return vector_of(drafts_.front().draft, temperatures_.front(), prompts_of(texts));
}

AcceptanceVectorTool::Recipe::Recipe() {
  run = {};
  bench.prompts = PromptKind::given;
  bench.temperatures.clear();
  bench.rates = false;
  accept.width = 32;
  output.text = "result file, empty or - = standard output";
}

void AcceptanceVectorTool::Recipe::check(recipe::Problems& p) const {
  AcceptanceRecipe::check(p);
  if (drafts().size() > 1 || temperatures().size() > 1 || bench.rates)
    p.field("bench",
            "bench: expected one draft at one temperature and rates=false, for one acceptance "
            "vector; measure more with magicdec-acceptance -s accept.width={}",
            accept.width);
}

int AcceptanceVectorTool::run() {
  cli::ResultFile result(point_.recipe.output.path, cx_.file_mode(), cx_.out);
  AcceptancePoint point(cx_, point_);
  note_sampling(cx_, point_.recipe.sampling, point.engines().target_files());
  point.admit([](const auto&, const Error& e) { throw e; }, nullptr);
  const Json vector = point.vector();
  result.write(cx_.format().starts_with("json")
                   ? vector.dump() + "\n"
                   : vector_table(vector).render(bench::table_format(cx_.format())));
  note_vector(cx_, vector);
  result.commit();
  cx_.out.flush();
  return 0;
}

}  // namespace tandem::tools

template tandem::recipe::Field tandem::recipe::fields_of(
    tandem::tools::AcceptanceVectorTool::Recipe&);
