#include "decode/generate.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "decode/stop.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace tandem::decode {
namespace {

/// One sequence on its way.
struct Active {
  int seq = 0;
  int slot = 0;
  bool stays = false;           // the slot is the caller's
  std::vector<int32_t> tokens;  // prompt and generated, as far as known
  size_t prompt = 0;
  int in_flight = 0;  // tokens that are being drawn
  StopMatcher stops;
  text::Utf8Assembler characters;  // of the bytes that stops let through
  std::optional<Finish> finish;

  size_t generated() const { return tokens.size() - prompt; }
  int position() const { return static_cast<int>(tokens.size()) + in_flight; }
  DrawSeq draw_seq() const { return {seq, slot, position(), tokens}; }
};

class Generator {
 public:
  Generator(Engine& engine, Decoder& decoder, std::span<const Request> requests,
            const GenerateSpec& spec, const GenerateEvents& events, GenerateReport& report)
      : engine_(engine),
        decoder_(decoder),
        requests_(requests),
        spec_(spec),
        events_(events),
        report_(report) {
    order_.resize(requests.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    if (engine.spec().adapters == AdapterUse::switched) group_by_adapter();
  }
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;
  /// After an interruption or an error, sequences go back to the cache as they do at their end.
  ~Generator() {
    for (const Active& a : active_) release(a);
  }

  void run(int max_active) {
    const double bytes_before = decoder_.bytes_read();
    decoder_.start(spec_.sampler);
    try {
      while (next_ < requests_.size() || !active_.empty()) {
        if (next_ < requests_.size() && static_cast<int>(active_.size()) < max_active)
          admit(max_active);
        if (!active_.empty()) step();
        retire();
      }
    } catch (...) {
      report_.bytes_read = decoder_.bytes_read() - bytes_before;
      tell();  // what an interrupted run has drawn belongs to it
      throw;
    }
    report_.bytes_read = decoder_.bytes_read() - bytes_before;
  }

 private:
  /// A token that was accepted and not reported yet.
  struct Untold {
    int seq;
    Drawn drawn;
    bool is_text;  // not a stop id
  };

  void group_by_adapter();
  void admit(int max_active);
  /// Whether the next request can go on now; puts its adapter into the weights once all sequences
  /// of another have ended.
  bool has_adapter();
  const Request& next() const { return requests_[order_[next_]]; }
  /// Appends the next sequence to active_.
  void start();
  /// Collects the oldest draw in flight once no other may be put beside it.
  void step();
  /// Puts a decode step in flight for all sequences that may get another token; false if there is
  /// none.
  bool launch();
  void collect();
  void retire();
  /// The draw of these sequences is on its way.
  void fly(std::span<Active* const> who);
  /// Whether a further token may be drawn, as far as known.
  bool wants_token(const Active& a) const;
  void accept(Active& a, Drawn drawn);
  /// The text that may be shown after this token.
  std::string text_after(Active& a, const Untold& token) const;
  /// Reports the tokens that were accepted, with their text.
  void tell();
  void release(const Active& a);

  Engine& engine_;
  Decoder& decoder_;
  std::span<const Request> requests_;
  const GenerateSpec& spec_;
  const GenerateEvents& events_;
  std::vector<Active> active_;
  std::deque<std::vector<int>> flying_;  // draws in flight, oldest first: their sequences
  std::vector<Untold> untold_;           // accepted, oldest first
  std::vector<size_t> order_;            // in which requests begin
  size_t next_ = 0;                      // of it
  GenerateReport& report_;
};

void Generator::group_by_adapter() {
  std::vector<int> found;  // in the order in which they are named
  const auto place = [&](size_t i) {
    return std::ranges::find(found, requests_[i].adapter) - found.begin();
  };
  for (const Request& r : requests_)
    if (std::ranges::find(found, r.adapter) == found.end()) found.push_back(r.adapter);
  std::ranges::stable_sort(order_, {}, place);
}

bool Generator::has_adapter() {
  if (engine_.spec().adapters != AdapterUse::switched ||
      engine_.switched_adapter() == next().adapter)
    return true;
  if (!active_.empty()) return false;
  const Stopwatch watch;
  engine_.switch_adapter(next().adapter);
  report_.switch_s += watch.seconds();
  ++report_.switches;
  return true;
}

void Generator::start() {
  const Request& r = next();
  const int slot = r.own_slot >= 0      ? r.own_slot
                   : r.prefix_slot >= 0 ? engine_.cache().fork(r.prefix_slot, decoder_.readers())
                                        : engine_.cache().create(decoder_.readers());
  if (engine_.spec().adapters != AdapterUse::none) engine_.use_adapter(slot, r.adapter);
  active_.push_back({.seq = static_cast<int>(order_[next_]),
                     .slot = slot,
                     .stays = r.own_slot >= 0,
                     .tokens = {},
                     .prompt = 0,
                     .in_flight = 0,
                     .stops = StopMatcher(spec_.stops),
                     .characters = {},
                     .finish = {}});
  Active& a = active_.back();
  a.tokens.assign(r.prefix.begin(), r.prefix.end());
  a.tokens.insert(a.tokens.end(), r.tokens.begin(), r.tokens.end());
  a.prompt = a.tokens.size();
  TANDEM_CHECK(a.prompt > 0, "request {} has no tokens", a.seq);
  // Nothing new after a prefix: its last token runs again, for the logits.
  if (r.tokens.empty()) engine_.cache().truncate(a.slot, static_cast<int>(a.prompt) - 1);
}

void Generator::admit(int max_active) {
  const size_t first = active_.size();
  while (next_ < requests_.size() && static_cast<int>(active_.size()) < max_active &&
         has_adapter()) {
    start();
    if (events_.on_prompt)
      events_.on_prompt(active_.back().seq, static_cast<int64_t>(active_.back().prompt));
    ++next_;
  }
  const std::span<Active> fresh = std::span(active_).subspan(first);
  if (fresh.empty()) return;
  const Stopwatch watch;
  std::vector<SeqTokens> prompts;
  int64_t total = 0;
  for (const Active& a : fresh) {
    const auto done = static_cast<size_t>(engine_.cache().length(a.slot));
    prompts.push_back({a.slot, std::span(a.tokens).subspan(done), true});
    total += static_cast<int64_t>(prompts.back().tokens.size());
  }
  engine_.prefill(
      prompts,
      [&](std::span<const size_t> which, const Tensor& logits) {
        std::vector<Active*> who;
        std::vector<DrawSeq> seqs;
        for (const size_t i : which) {
          who.push_back(&fresh[i]);
          seqs.push_back(fresh[i].draw_seq());
        }
        decoder_.draw(seqs, logits);
        fly(who);
        if (decoder_.in_flight() < decoder_.depth()) return;
        collect();
        tell();  // not after other prompts
      },
      [&](int64_t done) {
        if (events_.on_prefill) events_.on_prefill(done, total);
        return !(events_.interrupted && events_.interrupted());
      });
  report_.prefill_s += watch.seconds();
  report_.prompt_tokens += total;
  retire();
}

void Generator::step() {
  poll(events_.interrupted);
  const Stopwatch watch;
  const bool on_gpu = engine_.spec().device.kind == Device::Kind::cuda;
  const bool launched = decoder_.in_flight() < decoder_.depth() && launch();
  if (on_gpu) tell();  // of the step before, while this one runs
  if (!launched || decoder_.in_flight() >= decoder_.depth()) collect();
  if (!on_gpu) tell();
  report_.decode_s += watch.seconds();
}

bool Generator::wants_token(const Active& a) const {
  // A step whose tokens a sequence will hardly need would be for nothing.
  const double n = static_cast<double>(a.tokens.size()) + a.in_flight * decoder_.tokens_a_step();
  return !a.finish && n - static_cast<double>(a.prompt) < spec_.max_tokens &&
         (spec_.max_context == 0 || n < spec_.max_context);
}

bool Generator::launch() {
  std::vector<Active*> who;
  std::vector<DrawSeq> seqs;
  for (Active& a : active_)
    if (wants_token(a)) {
      who.push_back(&a);
      seqs.push_back(a.draw_seq());
    }
  if (who.empty()) return false;
  decoder_.step(seqs);
  fly(who);
  ++report_.decode_steps;
  return true;
}

void Generator::fly(std::span<Active* const> who) {
  std::vector<int>& seqs = flying_.emplace_back();
  for (Active* a : who) {
    ++a->in_flight;
    seqs.push_back(a->seq);
  }
}

void Generator::collect() {
  std::vector<std::vector<Drawn>> drawn = decoder_.collect();
  const std::vector<int> seqs = std::move(flying_.front());
  flying_.pop_front();
  for (size_t i = 0; i < seqs.size(); ++i) {
    // Draws of a sequence that has ended since are dropped.
    const auto a = std::find_if(active_.begin(), active_.end(),
                                [&](const Active& x) { return x.seq == seqs[i]; });
    if (a == active_.end() || a->finish) continue;
    --a->in_flight;
    for (Drawn& d : drawn[i])
      if (!a->finish) accept(*a, std::move(d));
  }
  if (std::any_of(active_.begin(), active_.end(), [](const Active& a) { return !!a.finish; }))
    tell();
}

void Generator::accept(Active& a, Drawn drawn) {
  const int32_t id = drawn.id;
  if (a.generated() > 0) ++report_.tokens_decoded;
  a.tokens.push_back(id);
  ++report_.new_tokens;
  const bool ends =
      std::find(spec_.stop_ids.begin(), spec_.stop_ids.end(), id) != spec_.stop_ids.end();
  untold_.push_back({a.seq, std::move(drawn), !ends});
  if (!spec_.stops.empty()) tell();  // the text says whether it goes on
  const int64_t length = static_cast<int64_t>(a.tokens.size());
  if (ends)
    a.finish = Finish::stop_id;
  else if (a.stops.matched())
    a.finish = Finish::stop_string;
  else if (static_cast<int>(a.generated()) >= spec_.max_tokens)
    a.finish = Finish::length;
  else if (spec_.max_context > 0 && length >= spec_.max_context)
    a.finish = Finish::context;
}

std::string Generator::text_after(Active& a, const Untold& token) const {
  const text::Tokenizer* tokenizer = engine_.tokenizer();
  std::string text;
  if (tokenizer == nullptr) return text;
  const int32_t id = token.drawn.id;
  const bool shown = token.is_text && !tokenizer->is_special(id);
  a.characters.append(a.stops.push(tokenizer->token_bytes(id), shown), text);
  if (a.stops.matched()) a.characters.finish(text);
  return text;
}

void Generator::tell() {
  for (Untold& u : std::exchange(untold_, {})) {
    const auto a = std::find_if(active_.begin(), active_.end(),
                                [&](const Active& x) { return x.seq == u.seq; });
    std::string text = text_after(*a, u);
    if (events_.on_token)
      events_.on_token(
          {u.seq, u.drawn.id, std::move(text), u.drawn.logprob, std::move(u.drawn.top)});
  }
}

void Generator::release(const Active& a) {
  decoder_.forget(a.slot);
  if (!a.stays) engine_.cache().release(a.slot);
}

void Generator::retire() {
  for (size_t i = 0; i < active_.size();) {
    if (!active_[i].finish) {
      ++i;
      continue;
    }
    Active a = std::move(active_[i]);
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    release(a);
    std::string rest;
    a.characters.append(a.stops.flush(), rest);
    a.characters.finish(rest);
    if (events_.on_finish) events_.on_finish(a.seq, *a.finish, rest);
  }
}

}  // namespace

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::length:
      return "length";
    case Finish::stop_id:
      return "stop_id";
    case Finish::stop_string:
      return "stop_string";
    case Finish::context:
      return "context";
  }
  return "?";
}

GenerateReport generate(Engine& engine, std::span<const Request> requests, const GenerateSpec& spec,
                        const GenerateEvents& events) {
  return generate(engine, *plain_decoder(engine), requests, spec, events);
}

GenerateReport generate(Engine& engine, Decoder& decoder, std::span<const Request> requests,
                        const GenerateSpec& spec, const GenerateEvents& events) {
  GenerateReport report;
  generate(engine, decoder, requests, spec, events, report);
  return report;
}

void generate(Engine& engine, Decoder& decoder, std::span<const Request> requests,
              const GenerateSpec& spec, const GenerateEvents& events, GenerateReport& report) {
  int prefixes = 0;
  std::vector<int> slots;
  for (const Request& r : requests)
    if (r.prefix_slot >= 0 && std::find(slots.begin(), slots.end(), r.prefix_slot) == slots.end()) {
      slots.push_back(r.prefix_slot);
      ++prefixes;
    }
  const int room = engine.spec().max_seqs - prefixes;
  const int max_active = spec.max_active > 0 ? std::min(spec.max_active, room) : room;
  TANDEM_CHECK(max_active > 0 || requests.empty(), "{} prefixes leave no room for sequences",
               prefixes);
  Generator(engine, decoder, requests, spec, events, report).run(max_active);
}

}  // namespace tandem::decode
