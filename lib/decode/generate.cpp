#include "decode/generate.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "decode/stop.h"
#include "text/streamer.h"

namespace tandem::decode {
namespace {

/// One sequence on its way.
struct Active {
  int seq = 0;
  int slot = 0;
  std::vector<int32_t> tokens;  // prompt and generated
  size_t prompt = 0;
  std::optional<text::Streamer> streamer;
  StopMatcher stops;
  std::optional<Finish> finish;

  size_t generated() const { return tokens.size() - prompt; }
};

class Generator {
 public:
  Generator(Engine& engine, std::span<const Request> requests, const GenerateSpec& spec,
            const GenerateEvents& events)
      : engine_(engine), requests_(requests), spec_(spec), events_(events) {}
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;
  /// After an interruption or an error, sequences go back to the cache as they do at their end.
  ~Generator() {
    for (const Active& a : active_) engine_.cache().release(a.slot);
  }

  GenerateReport run(int max_active) {
    while (next_ < requests_.size() || !active_.empty()) {
      if (next_ < requests_.size() && static_cast<int>(active_.size()) < max_active) admit(max_active);
      retire();
      if (!active_.empty()) step();
      retire();
    }
    return report_;
  }

 private:
  void admit(int max_active);
  /// Appends a sequence to active_.
  void start(const Request& request);
  void step();
  void retire();
  /// Draws a token for each of `who` from its row of logits.
  void draw(std::span<Active* const> who, const Tensor& logits);
  void accept(Active& a, int32_t id, float logprob, std::vector<std::pair<int32_t, float>> top);

  Engine& engine_;
  std::span<const Request> requests_;
  const GenerateSpec& spec_;
  const GenerateEvents& events_;
  std::vector<Active> active_;
  size_t next_ = 0;
  GenerateReport report_;
};

void Generator::start(const Request& r) {
  const int slot = r.prefix_slot >= 0 ? engine_.cache().fork(r.prefix_slot, spec_.policy)
                                      : engine_.cache().create(spec_.policy);
  active_.push_back({.seq = static_cast<int>(next_), .slot = slot, .tokens = {}, .prompt = 0,
                     .streamer = {}, .stops = StopMatcher(spec_.stops), .finish = {}});
  Active& a = active_.back();
  a.tokens.assign(r.prefix.begin(), r.prefix.end());
  a.tokens.insert(a.tokens.end(), r.tokens.begin(), r.tokens.end());
  a.prompt = a.tokens.size();
  TANDEM_CHECK(a.prompt > 0, "request {} is empty", next_);
  // Nothing new after a prefix: its last token runs again, for the logits.
  if (r.tokens.empty()) engine_.cache().truncate(a.slot, static_cast<int>(a.prompt) - 1);
  if (engine_.tokenizer() != nullptr)
    a.streamer.emplace(*engine_.tokenizer(), text::StreamerOptions{.continues_text = true});
}

void Generator::admit(int max_active) {
  const Stopwatch watch;
  const size_t first = active_.size();
  while (next_ < requests_.size() && static_cast<int>(active_.size()) < max_active) {
    start(requests_[next_]);
    if (events_.on_prompt)
      events_.on_prompt(active_.back().seq, static_cast<int64_t>(active_.back().prompt));
    ++next_;
  }
  const std::span<Active> fresh = std::span(active_).subspan(first);
  std::vector<SeqTokens> prompts;
  int64_t total = 0;
  for (const Active& a : fresh) {
    const auto done = static_cast<size_t>(engine_.cache().length(a.slot));
    prompts.push_back({a.slot, std::span(a.tokens).subspan(done), true});
    total += static_cast<int64_t>(prompts.back().tokens.size());
  }
  engine_.prefill(
      prompts,
      [&](size_t i, const float* logits) {
        Active* const who[] = {&fresh[i]};
        draw(who, Tensor(const_cast<float*>(logits), DType::f32, {1, engine_.config().vocab_size}));
      },
      [&](int64_t done) {
        if (events_.on_prefill) events_.on_prefill(done, total);
        return !(events_.interrupted && events_.interrupted());
      });
  report_.prefill_s += watch.seconds();
  report_.prompt_tokens += total;
}

void Generator::step() {
  poll(events_.interrupted);
  const Stopwatch watch;
  std::vector<SeqTokens> rows;
  std::vector<Active*> who;
  const double kv_before = engine_.cache().usage(spec_.policy).bytes();
  for (Active& a : active_) {
    rows.push_back({a.slot, std::span(a.tokens).last(1), true});
    who.push_back(&a);
  }
  draw(who, engine_.extend(rows));
  report_.decode_s += watch.seconds();
  report_.bytes_read += static_cast<double>(engine_.weight_bytes()) +
                        engine_.cache().usage(spec_.policy).bytes() - kv_before;
  report_.tokens_decoded += static_cast<int64_t>(rows.size());
  ++report_.decode_steps;
}

void Generator::draw(std::span<Active* const> who, const Tensor& logits) {
  std::vector<double> uniform;
  std::vector<std::span<const int32_t>> seen;
  for (const Active* a : who) {
    const auto words = draw4(static_cast<uint64_t>(spec_.seed), static_cast<uint32_t>(a->seq),
                             static_cast<uint32_t>(a->tokens.size()), DrawPurpose::sample);
    uniform.push_back(uniform53(words[0], words[1]));
    seen.emplace_back(a->tokens);
  }
  const ops::LogitStats stats = ops::logit_stats(logits);
  const std::vector<int32_t> ids = ops::sample(logits, spec_.rule, uniform, seen);
  ops::TopN top;
  if (spec_.top_logprobs > 0) top = ops::top_n(logits, stats, spec_.top_logprobs);
  const size_t n_top = top.ids.size() / who.size();
  for (size_t r = 0; r < who.size(); ++r) {
    std::vector<std::pair<int32_t, float>> alternatives;
    for (size_t i = r * n_top; i < (r + 1) * n_top; ++i)
      alternatives.emplace_back(top.ids[i], top.logprobs[i]);
    const float logit = logits.slice(static_cast<int64_t>(r), 1).as<float>()[ids[r]];
    accept(*who[r], ids[r], logit - stats.lse[r], std::move(alternatives));
  }
}

void Generator::accept(Active& a, int32_t id, float logprob,
                       std::vector<std::pair<int32_t, float>> top) {
  a.tokens.push_back(id);
  ++report_.new_tokens;
  const bool ends = std::find(spec_.stop_ids.begin(), spec_.stop_ids.end(), id) != spec_.stop_ids.end();
  std::string text;
  if (a.streamer && !ends) text = a.stops.push(a.streamer->push(id));
  if (events_.on_token) events_.on_token({a.seq, id, std::move(text), logprob, std::move(top)});
  const int64_t length = static_cast<int64_t>(a.tokens.size());
  if (ends) a.finish = Finish::stop_id;
  else if (a.stops.matched()) a.finish = Finish::stop_string;
  else if (static_cast<int>(a.generated()) >= spec_.max_tokens) a.finish = Finish::length;
  else if (spec_.max_context > 0 && length >= spec_.max_context) a.finish = Finish::context;
}

void Generator::retire() {
  for (size_t i = 0; i < active_.size();) {
    if (!active_[i].finish) {
      ++i;
      continue;
    }
    Active a = std::move(active_[i]);
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    engine_.cache().release(a.slot);
    std::string rest;
    if (a.streamer && !a.stops.matched()) {
      rest = a.stops.push(a.streamer->flush());
      rest += a.stops.flush();
    }
    if (events_.on_finish) events_.on_finish(a.seq, *a.finish, rest);
  }
}

}  // namespace

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::length: return "length";
    case Finish::stop_id: return "stop_id";
    case Finish::stop_string: return "stop_string";
    case Finish::context: return "context";
  }
  return "?";
}

GenerateReport generate(Engine& engine, std::span<const Request> requests, const GenerateSpec& spec,
                        const GenerateEvents& events) {
  int prefixes = 0;
  std::vector<int> slots;
  for (const Request& r : requests)
    if (r.prefix_slot >= 0 && std::find(slots.begin(), slots.end(), r.prefix_slot) == slots.end()) {
      slots.push_back(r.prefix_slot);
      ++prefixes;
    }
  const int max_active = engine.spec().max_seqs - prefixes;
  TANDEM_CHECK(max_active > 0 || requests.empty(), "no sequences left beside {} prefixes", prefixes);
  return Generator(engine, requests, spec, events).run(max_active);
}

}  // namespace tandem::decode
