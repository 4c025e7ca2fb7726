#include "tools/results/generate_output.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cpu_features.h"
#include "base/parallel.h"
#include "cli/help.h"
#include "io/jsonl.h"
#include "machine/gpu_hardware.h"
#include "machine/hosted_report.h"
#include "speculate/measure/channels_json.h"
#include "tensor/arena.h"
#include "tensor/cuda.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {

using Json = nlohmann::ordered_json;

GenerateOutput::GenerateOutput(cli::Context& cx, const std::filesystem::path& path,
                               const decode::PromptSet& prompts, const decode::Engine& engine,
                               const MemoryPlan& plan, const machine::HostedPlan* hosted)
    : cx_(cx),
      result_(path, cx.file_mode(), cx.out),
      prompts_(prompts),
      engine_(engine),
      plan_(plan),
      hosted_(hosted),
      jsonl_(cx.format() == "jsonl"),
      results_(cx.format() == "results"),
      several_(prompts.sequences.size() > 1) {}

decode::GenerateEvents GenerateOutput::events() {
  return {.on_prompt =
              [this](int seq, int64_t n) {
                if (!jsonl_) return;
                Json prompt = {{"event", "prompt"}, {"seq", seq}, {"tokens", n}};
                // A long prompt has a megabyte of them.
                if (cx_.terminal.verbosity() > 0)
                  prompt["ids"] = prompts_.sequences[static_cast<size_t>(seq)];
                event(prompt);
              },
          .on_token = [this](const decode::TokenEvent& e) { on_token(e); },
          .on_finish = [this](int seq, decode::Finish f,
                              const std::string& rest) { on_finish(seq, f, rest); },
          .on_prefill = [this](int64_t done, int64_t total) { on_prefill(done, total); },
          .interrupted = cli::agree_interrupted};
}

void GenerateOutput::event(const Json& value) { result_.write(io::jsonl_line(value)); }

void GenerateOutput::on_prefill(int64_t done, int64_t total) {
  if (done == total) return progress_.reset();  // the first token may be out already
  if (!progress_)
    progress_ = std::make_unique<cli::Progress>(cx_.terminal, "prefill", double(total), "tok");
  progress_->update(double(done));
}

void GenerateOutput::on_token(const decode::TokenEvent& e) {
  progress_.reset();
  if (!first_token_s_) first_token_s_ = clock_.seconds();
  if (jsonl_) {
    Json j = {{"event", "token"}, {"seq", e.seq},         {"id", e.id},
              {"text", e.text},   {"logprob", e.logprob}, {"t_ms", clock_.seconds() * 1e3}};
    if (!e.top.empty()) {
      Json& top = j["top"] = Json::array();
      for (const auto& [id, logprob] : e.top) top.push_back(Json::array({id, logprob}));
    }
    event(j);
  } else if (several_ || results_) {
    Text& t = texts_[e.seq];
    t.text += e.text;
    t.last_ms = clock_.seconds() * 1e3;
    if (t.tokens++ == 0) t.first_ms = t.last_ms;
    if (engine_.tokenizer() == nullptr) t.ids.push_back(e.id);
  } else if (engine_.tokenizer() != nullptr) {
    if (!e.text.empty()) result_.write(e.text);
  } else {
    result_.write(std::to_string(e.id) + " ");  // ids in, ids out
  }
}

void GenerateOutput::on_finish(int seq, decode::Finish finish, const std::string& rest) {
  finished_[seq] = finish;
  if (jsonl_) {
    event({{"event", "finish"},
           {"seq", seq},
           {"reason", decode::finish_name(finish)},
           {"text", rest}});
  } else if (several_ || results_) {
    texts_[seq].text += rest;
    show_finished();
  } else {
    result_.write(rest + "\n");
  }
}

void GenerateOutput::show_finished() {
  for (; finished_.contains(next_shown_); ++next_shown_) {
    const auto seq = static_cast<size_t>(next_shown_);
    if (results_)
      result_.write(result_of(next_shown_).dump(-1, ' ', false, Json::error_handler_t::replace) +
                    "\n");
    else
      result_.write(
          (seq < prompts_.labels.size() ? prompts_.labels[seq] : fmt::format("[{}]", next_shown_)) +
          "\n" + texts_[next_shown_].text + "\n\n");
    texts_.erase(next_shown_);
  }
}

Json GenerateOutput::result_of(int seq) const {
  const auto i = static_cast<size_t>(seq);
  const Text& t = texts_.at(seq);
  Json line = {{"seq", seq}};
  const auto add = [&](const char* key, const std::vector<std::string>& json) {
    if (i < json.size() && !json[i].empty()) line[key] = Json::parse(json[i]);
  };
  add("id", prompts_.ids);
  add("prompt", prompts_.asked);
  if (engine_.tokenizer() != nullptr)
    line["text"] = t.text;
  else
    line["ids"] = t.ids;
  line.update({{"prompt_tokens", prompts_.sequences[i].size()},
               {"tokens", t.tokens},
               {"finish", decode::finish_name(finished_.at(seq))},
               {"first_token_ms", t.first_ms},
               {"last_token_ms", t.last_ms}});
  return line;
}

void GenerateOutput::on_round(const speculate::RoundEvent& e) {
  if (jsonl_)
    event({{"event", "round"}, {"seq", e.seq}, {"drafted", e.drafted}, {"accepted", e.accepted}});
}

double GenerateOutput::memory_gbps(double reached, bool uncached) const {
  const Device device = engine_.spec().device;
  const bool measures = cx_.terminal.verbosity() > 0 && !cli::is_interrupted();
  const machine::SeenRates seen{.read_gbps = uncached ? reached : 0,
                                .cached_gbps = uncached ? 0 : reached};
  if (device.kind == Device::Kind::cuda)
    return measures ? std::max(machine::measure_gpu_read_gbps(device), seen.read_gbps) : 0;
  if (!measures) {
    machine::raise_ceilings(max_threads(), seen);
    const auto known = machine::known_ceilings(max_threads());
    return known ? known->mem_read_gbps : 0;
  }
  const machine::Ceilings c = machine::cached_ceilings(max_threads(), seen);
  if (const std::string text = machine::doubt_text(c); !text.empty()) cx_.warn(text);
  return c.mem_read_gbps;
}

namespace {

/// The first of them.
std::string percents(const std::vector<double>& shares) {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, shares.size()); ++i)
    text += fmt::format("{}{:.0f}", i > 0 ? ", " : "", 100 * shares[i]);
  return text + (shares.size() > kMost ? ", ... %" : " %");
}

/// The lines of a summary, a label of kLabel columns and what it says, broken to fit `columns`.
std::string wrapped(std::string_view text, size_t columns) {
  constexpr size_t kLabel = 9;
  std::string out;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t label = std::min(kLabel, line.size());
    out += line.substr(0, label);
    cli::append_wrapped(out, columns, label, kLabel, line.substr(label));
  }
  out.pop_back();  // the last newline
  return out;
}

Json rounds_json(const speculate::RoundStats& r) {
  return {{"draft", r.drafter},
          {"verify", r.rule},
          {"lossy", r.lossy},
          {"nodes", r.nodes},
          {"rounds", r.rounds},
          {"drafted", r.drafted},
          {"accepted", r.accepted},
          {"emitted", r.emitted},
          {"accepted_hist", r.accepted_hist},
          {"mean_tokens_per_round", r.tokens_per_round()},
          {"rate_by_position", r.rate_by_position()},
          {"share_accepted", r.share_accepted()},
          {"alpha", r.share_of_tested()},
          {"draft_s", r.draft_s},
          {"target_s", r.target_s},
          {"verify_s", r.verify_s}};
}

}  // namespace

Json GenerateOutput::summary(const decode::GenerateReport& r, double load_s, int64_t seed,
                             const recipe::Sampling& sampling,
                             const SpeculationReport& speculation) const {
  const size_t peak = peak_resident_bytes();  // before the bandwidth probe takes memory
  Json j = {{"event", "summary"},
            {"model", engine_.files().name},
            {"device", engine_.spec().device.name()},
            {"threads", max_threads()},
            {"isa", isa_name(isa_in_use())},
            {"seed", seed},
            {"sampling", sampling_json(sampling)},
            {"load_s", load_s},
            {"prompt_tokens", r.prompt_tokens},
            {"prefill_s", r.prefill_s},
            {"new_tokens", r.new_tokens},
            {"decode_s", r.decode_s},
            {"decode_steps", r.decode_steps},
            {"peak_bytes", peak},
            {"planned_peak_bytes", plan_.peak({})}};
  const Device device = engine_.spec().device;
  const bool on_gpu = device.kind == Device::Kind::cuda;
  if (on_gpu) {
    j["gpu"] = cuda::device_info(device.index).name;
    j["planned_gpu_bytes"] = plan_.peak(device);
  }
  if (first_token_s_) j["first_token_s"] = load_s + *first_token_s_;
  if (r.prefill_s > 0) j["prefill_tok_s"] = double(r.prompt_tokens) / r.prefill_s;
  if (r.tokens_decoded > 0 && r.decode_s > 0) {
    const double gbps = r.bytes_read / r.decode_s * 1e-9;
    const bool uncached = r.bytes_read / double(r.decode_steps) > machine::kUncachedBytes;
    const double ceiling = memory_gbps(gbps, uncached);
    j["decode_tok_s"] = double(r.tokens_decoded) / r.decode_s;
    j["bytes_per_token"] = r.bytes_read / double(r.tokens_decoded);
    j["read_gbps"] = gbps;
    if (ceiling > 0 && ceiling < gbps) j["from_cache"] = true;
    if (ceiling >= gbps) {
      j["mem_read_gbps"] = ceiling;
      j["frac_of_mem_read"] = gbps / ceiling;
    }
  }
  if (const size_t bytes = engine_.streamed_bytes(); bytes > 0) {
    Json& o = j["offload"] = {{"layers", engine_.spec().savings.n_streamed},
                              {"of", engine_.config().n_layers},
                              {"bytes_per_step", bytes}};
    if (const model::ChannelSets* sets = engine_.model().sets()) {
      o["set_channels"] = sets->n_set();
      o["exchanged"] = {{"bytes", sets->exchanged().bytes}, {"s", sets->exchanged().seconds}};
    }
    double ceiling = 0;
    if (cx_.terminal.verbosity() > 0 && !cli::is_interrupted()) {
      engine_.settle();
      ceiling = machine::measure_gpu_copy_in_gbps(device);
    }
    if (r.decode_steps > 0) {
      const double gbps = double(bytes) * double(r.decode_steps) / r.decode_s * 1e-9;
      o["gbps"] = gbps;
      if (ceiling > 0) {
        ceiling = std::max(ceiling, gbps);  // these copies show what the link can do, too
        o["frac_of_copy_in"] = gbps / ceiling;
      }
    }
    if (ceiling > 0) o["copy_in_gbps"] = ceiling;
  }
  if (hosted_ != nullptr) j["hosted"] = machine::hosted_json(*hosted_);
  if (!engine_.files().merged.empty()) j["adapters"]["merged"] = engine_.files().merged;
  if (const decode::AdapterUse use = engine_.spec().adapters; use != decode::AdapterUse::none) {
    Json& a = j["adapters"];
    a["use"] = use == decode::AdapterUse::mix ? "mix" : "switch";
    for (const model::NamedAdapter& adapter : engine_.files().adapters)
      a["names"].push_back(adapter.name);
    if (use == decode::AdapterUse::switched) {
      a["switches"] = r.switches;
      a["switch_s"] = r.switch_s;
    }
  }
  // A GPU does not count keys, but errors.
  if (const kv::KeyUsage usage = engine_.cache().total_usage(0);
      usage.visible > 0 || usage.with_error > 0) {
    j["attention"] = {{"policy", engine_.cache().needs(0).kind}};
    if (usage.visible > 0) {
      j["attention"]["selected_keys_frac"] = usage.selected_share();
      j["attention"]["fixed_keys_frac"] = usage.fixed_share();
    }
    if (usage.with_error > 0) j["attention"]["weights_error_bound"] = usage.mean_error();
  }
  if (const auto* rounds = speculation.rounds; rounds != nullptr && rounds->rounds > 0) {
    j["spec"] = rounds_json(*rounds);
    if (engine_.channels() != nullptr && speculation.reads_channels)
      j["spec"]["channels"] = speculate::channels_json(engine_, 1, *rounds);
    if (speculation.within != nullptr) j["spec"]["within"] = rounds_json(*speculation.within);
    if (const auto& plain = speculation.plain)
      j["spec"].update({{"ms_per_token", plain->round_ms},
                        {"plain_ms_per_token", plain->plain_ms},
                        {"plain_steps", plain->steps},
                        {"plain_batch", plain->batch},
                        {"speedup", plain->speedup()}});
  }
  if (speculation.fastest != nullptr) j["spec"]["fastest"] = *speculation.fastest;
  if (speculation.declined) j["spec"]["declined"] = true;
  if (speculation.predicted != nullptr) j["spec"]["predicted"] = *speculation.predicted;
  Json& sequences = j["sequences"] = Json::array();
  for (const auto& [seq, finish] : finished_)
    sequences.push_back({{"seq", seq}, {"finish", decode::finish_name(finish)}});
  return j;
}

std::string GenerateOutput::context_line(int max_context) const {
  const auto n = std::ranges::count_if(
      finished_, [](const auto& f) { return f.second == decode::Finish::context; });
  if (n == 0) return {};
  return fmt::format(
      "{}stopped at {} ({} tokens)",
      several_ ? fmt::format("{} of {} sequences ", n, prompts_.sequences.size()) : "",
      max_context == engine_.config().max_context ? "the model's context" : "run.context",
      max_context);
}

void GenerateOutput::finish(const decode::PromptsReport& r, double load_s, int64_t seed,
                            const recipe::Sampling& sampling,
                            const SpeculationReport& speculation) {
  progress_.reset();
  const Json j = summary(r, load_s, seed, sampling, speculation);
  if (!r.ended) {
    if (jsonl_) event(j);
    result_.commit();
    cx_.out.flush();
  }
  if (cx_.terminal.verbosity() >= 0 && (!r.ended || r.new_tokens > 0))
    note_summary(j, r, load_s, seed, speculation);
  if (const std::string line = context_line(r.max_context); !line.empty()) cx_.note(line);
  constexpr double kLoss = 0.95;  // clocks vary that much
  if (const auto& plain = speculation.plain; plain && plain->speedup() < kLoss)
    cx_.warn(fmt::format("speculation was {:.2f}x as fast as plain decoding: {}", plain->speedup(),
                         speculation.remedy));
  if (r.ended) throw *r.ended;
}

void GenerateOutput::note_summary(const Json& j, const decode::PromptsReport& r, double load_s,
                                  int64_t seed, const SpeculationReport& speculation) const {
  const auto number = [](const Json& from, const char* key) { return from[key].get<double>(); };
  const auto bytes = [](const Json& from, const char* key) {
    return format_bytes(static_cast<size_t>(from[key].get<double>()));
  };
  std::string text = fmt::format(
      "device   {}  {}  seed {}\nload     {:.2f} s\nprefill  {} tokens in {:.2f} s",
      j["device"].get<std::string>(),
      j.contains("gpu") ? j["gpu"].get<std::string>()
                        : fmt::format("{} threads, {}", max_threads(), isa_name(isa_in_use())),
      seed, load_s, r.prompt_tokens, r.prefill_s);
  if (j.contains("prefill_tok_s"))
    text += fmt::format("  {:.0f} tok/s", number(j, "prefill_tok_s"));
  if (j.contains("decode_tok_s"))
    text += fmt::format(
        "\ndecode   {} tokens in {:.2f} s  {:.1f} tok/s  {} read per token, {:.1f} GB/s",
        r.tokens_decoded, r.decode_s, number(j, "decode_tok_s"), bytes(j, "bytes_per_token"),
        number(j, "read_gbps"));
  if (j.contains("frac_of_mem_read"))
    text += fmt::format(" ({:.0f} % of the memory's {:.1f} GB/s)",
                        100 * number(j, "frac_of_mem_read"), number(j, "mem_read_gbps"));
  if (j.contains("from_cache")) text += " (from cache)";
  if (j.contains("offload")) {
    const Json& o = j["offload"];
    text += fmt::format("\noffload  {} of {} layers, {} copied to the GPU per step",
                        o["layers"].get<int>(), o["of"].get<int>(), bytes(o, "bytes_per_step"));
    if (o.contains("gbps")) text += fmt::format(", {:.1f} GB/s", number(o, "gbps"));
    if (o.contains("frac_of_copy_in"))
      text += fmt::format(" ({:.0f} % of the link's {:.1f} GB/s)",
                          100 * number(o, "frac_of_copy_in"), number(o, "copy_in_gbps"));
  }
  if (j.contains("adapters")) {
    const Json& a = j["adapters"];
    if (a.contains("merged"))
      text += fmt::format("\nadapters {}, merged into the weights",
                          fmt::join(engine_.files().merged, ", "));
    if (a.contains("use")) text += fmt::format("\nadapters {}, ", a["names"].size());
    if (a.contains("use"))
      text += a.contains("switches")
                  ? fmt::format("{} switches in {:.2f} s", r.switches, r.switch_s)
                  : std::string("next to the weights");
  }
  if (hosted_ != nullptr)
    text += fmt::format("\nattend   predicted: {}", machine::hosted_choice(*hosted_));
  if (const auto* rounds = speculation.rounds; rounds != nullptr && rounds->rounds > 0)
    text += fmt::format(
        "\nspec     {} steps, {:.2f} tokens per step by {}{}, draft {:.2f} s, target {:.2f} s, "
        "verify {:.2f} s\n         accepted at position 1, 2, ...: {} (tokens per step include one "
        "from the target)",
        rounds->rounds, rounds->tokens_per_round(), rounds->rule, rounds->lossy ? " (lossy)" : "",
        rounds->draft_s, rounds->target_s, rounds->verify_s, percents(rounds->rate_by_position()));
  if (j.contains("spec") && j["spec"].contains("channels")) {
    const Json& c = j["spec"]["channels"];
    text += fmt::format(
        "\nneurons  {}: drafts compute {:.1f} % of the FFN, with {:.1f} % of all "
        "parameters\n         tokens per step (AAL) {:.2f} of {:.4g}, parameters used per token "
        "(APU) {:.3f}, tokens per rollback {:.2f}",
        c["policy"].get<std::string>(), 100 * number(c, "channels_read"),
        100 * number(c, "density"), number(c, "aal"), number(c, "k"), number(c, "apu"),
        number(c, "rollback"));
  }
  if (const auto* within = speculation.within; within != nullptr && within->rounds > 0)
    text += fmt::format(
        "\ninner    {} steps, {:.2f} tokens per step by {}, draft {:.2f} s, target {:.2f} s, "
        "verify {:.2f} s\n         accepted: {:.1f} % of tested tokens in inner steps, {:.1f} % of "
        "their output by the full model",
        within->rounds, within->tokens_per_round(), within->rule, within->draft_s, within->target_s,
        within->verify_s, 100 * within->share_of_tested(),
        100 * speculation.rounds->share_of_tested());
  if (const auto& plain = speculation.plain)
    text += fmt::format(
        "\nplain    {:.3g} ms per token{}, measured over {} plain step{} (speculation was {:.2f}x "
        "as fast)",
        plain->plain_ms, plain->batch > 1 ? fmt::format(" for {} sequences", plain->batch) : "",
        plain->steps, plain->steps == 1 ? "" : "s", plain->speedup());
  else if (speculation.rounds != nullptr && speculation.rounds->rounds > 0)
    text += "\nplain    not measured: too few speculation steps";
  if (j.contains("attention") && j["attention"].contains("selected_keys_frac"))
    text += fmt::format(
        "\npolicy   {}: each query head read {:.1f} % of the context by content and {:.1f} % as "
        "sinks, recent and new tokens",
        j["attention"]["policy"].get<std::string>(),
        100 * number(j["attention"], "selected_keys_frac"),
        100 * number(j["attention"], "fixed_keys_frac"));
  if (j.contains("attention") && j["attention"].contains("weights_error_bound"))
    text += fmt::format(
        "\n         softmax denominators are within {:.1f} % in 95 of 100 cases (mean over heads "
        "and steps)",
        100 * number(j["attention"], "weights_error_bound"));
  text += fmt::format("\nmemory   peak {}, planned {}", bytes(j, "peak_bytes"),
                      bytes(j, "planned_peak_bytes"));
  if (j.contains("planned_gpu_bytes"))
    text += fmt::format(" on the host, {} on the GPU", bytes(j, "planned_gpu_bytes"));
  cx_.note(cx_.terminal.is_tty() ? wrapped(text, cli::window_columns(STDERR_FILENO)) : text);
}

}  // namespace tandem::tools
