#include "recipe/sections.h"

#include <fmt/chrono.h>

#include <ctime>

#include "io/quote.h"
#include "recipe/value_of.h"

namespace tandem::recipe {
namespace {

/// cuda or cuda:N[,M..] with ordinals of up to three digits.
bool is_cuda_list(std::string_view device) {
  if (!device.starts_with("cuda")) return false;
  device.remove_prefix(4);
  if (device.empty()) return true;
  if (device[0] != ':') return false;
  size_t digits = 0;
  for (const char c : device.substr(1)) {
    if (c >= '0' && c <= '9' && digits < 3)
      ++digits;
    else if (c == ',' && digits > 0)
      digits = 0;
    else
      return false;
  }
  return digits > 0;
}

}  // namespace

std::string_view Run::plan_for_text() {
  static const std::string text =
      "GPU model for the plan of --dry-run, in place of this machine's: " + gpu_names() +
      ". null = this machine's GPU, or without one, a GPU with gpu_memory_limit or 80 GiB";
  return text;
}

void Weights::check(Problems& p) const {
  if (group != 32 && group != 64 && group != 128)
    p.field("group", "model.group: expected 32, 64 or 128, found {}", group);
  const auto needs = [&](const char* key, bool usual, const char* types) {
    if (!usual)
      p.field(key, "model.{0}: needs weights {1}, found {2}: set weights, or leave {0} out", key,
              types, yaml_text(weights));
  };
  const Weights usual;
  if (!is_quantized(weights)) {
    needs("head", head == usual.head, "int8, int4 or fp8");
    needs("embedding", embedding == usual.embedding, "int8, int4 or fp8");
  }
  if (is_quantized(weights) && weights != WeightType::fp8)
    needs("activations", activations != Activations::fp8, "fp8");
  if (has_groups(weights) || has_groups(head) || has_groups(embedding)) return;
  needs("group", group == usual.group, "int8 or int4");
  needs("scale_search", scale_search == usual.scale_search, "int8 or int4");
  if (weights == WeightType::fp8)
    needs("activations", activations != Activations::int8, "int8 or int4");
}

void Model::check(Problems& p) const {
  Weights::check(p);
  const auto check_numbers = [&](const char* key, WeightType type) {
    const bool numbers = type == WeightType::bf16 || type == WeightType::f32;
    if (numbers && yaml_text(type) != yaml_text(compute))
      p.field(
          key,
          "model.{}: no product multiplies {} weights by {} inputs: set model.compute to {}, or "
          "leave {} auto",
          key, yaml_text(type), yaml_text(compute), yaml_text(type), key);
  };
  check_numbers("weights", weights);
  check_numbers("head", head);
  check_numbers("embedding", embedding);
  for (size_t i = 0; i < adapters.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      if (!adapters[i].name.empty() && adapters[i].name == adapters[k].name)
        p.field("adapters", "model.adapters: two adapters are called '{}': rename one",
                adapters[i].name);
}

void Run::check(Problems& p) const {
  if (device != "auto" && device != "cpu" && !is_cuda_list(device))
    p.field("device", "run.device: expected auto, cpu, cuda or cuda:N[,M..], found '{}'", device);
}

void Chat::check(Problems& p) const {
  if (!date) return;
  std::tm day{};
  ::strptime(date->c_str(), "%Y-%m-%d", &day);
  ::timegm(&day);  // makes 30 February a day of March
  if (fmt::format("{:%Y-%m-%d}", day) != *date)
    p.field("date", "chat.date: expected a date such as 2026-03-31, found '{}'", *date);
}

void Sampling::check(Problems& p) const {
  for (const std::string& text : stop) {
    std::string_view rest = text;
    while (const size_t n = io::utf8_length(rest)) rest.remove_prefix(n);
    if (text.empty())
      p.field("stop", "sampling.stop: expected a text, found an empty one: leave it out");
    else if (!rest.empty())
      p.field("stop",
              "sampling.stop: {} has byte 0x{:02x}, which is not UTF-8, so it never matches: write "
              "it as UTF-8 text",
              io::quote(text), static_cast<unsigned char>(rest[0]));
  }
}

void Lsh::check(Problems& p) const {
  if (min_hits > tables)
    p.field("min_hits", "cache.lsh.min_hits: {} tables must agree, but cache.lsh.tables is {}",
            min_hits, tables);
}

void Quest::check(Problems& p) const {
  if (64 % page != 0) p.field("page", "cache.quest.page: expected a divisor of 64, found {}", page);
}

void Hybrid::check(Problems& p) const {
  if (tail == HybridTail::sampled && sample <= 0)
    p.field("sample", "cache.hybrid.sample: tail sampled needs a share above 0, found 0");
  if (budget == HybridBudget::error && tail != HybridTail::sampled)
    p.field("budget", "cache.hybrid.budget: error needs tail sampled, found {}: set tail sampled",
            yaml_text(tail));
}

void SnapKv::check(Problems& p) const {
  if (pool % 2 == 0)
    p.field("pool", "cache.snapkv.pool: expected an odd number, found {}: try {}", pool, pool + 1);
}

void Retrieval::check(Problems& p) const {
  if (64 % chunk != 0)
    p.field("chunk", "cache.retrieval.chunk: expected a divisor of 64, found {}", chunk);
}

namespace {

/// The CPU alone reads eight bits, row by row.
void check_host_dtype(const Cache& c, Problems& p) {
  if (!c.is_hosted() && c.host_dtype != HostDtype::automatic)
    p.field("host_dtype",
            "cache.host_dtype: {} needs cache.place host, found device: set place host, or leave "
            "it auto",
            yaml_text(c.host_dtype));
  if (!c.is_eight_bit()) return;
  if (c.kind == CacheKind::full)
    p.field("host_dtype",
            "cache.host_dtype: int8 needs a sparse kind, found full: leave it auto, or choose kind "
            "lsh or hybrid");
  else if (c.attend == Attend::gpu || c.attend == Attend::both)
    p.field("host_dtype",
            "cache.host_dtype: int8 needs attention on the CPU, found attend {}: set attend cpu, "
            "or leave host_dtype auto",
            yaml_text(c.attend));
  else if (c.kind == CacheKind::lsh && c.attend == Attend::automatic &&
           c.index == IndexPlace::device)
    p.field("host_dtype",
            "cache.host_dtype: int8 with kind lsh needs its tables in host memory, found index "
            "device: set index host, or leave host_dtype auto");
}

}  // namespace

void Cache::check(Problems& p) const {
  if (prefill == Prefill::windowed && kind != CacheKind::streaming)
    p.field("prefill",
            "cache.prefill: windowed needs kind streaming, found {}: leave it dense, or choose "
            "kind streaming",
            yaml_text(kind));
  if (place == CachePlace::host && kind != CacheKind::lsh && kind != CacheKind::hybrid &&
      kind != CacheKind::full)
    p.field("place",
            "cache.place: host needs kind lsh, hybrid or full, found {}: leave it device, or "
            "change the kind",
            yaml_text(kind));
  if (place == CachePlace::host && kind == CacheKind::full) {
    if (attend == Attend::both)
      p.field("attend",
              "cache.attend: both needs a sparse kind, found full: set attend cpu or gpu, or kind "
              "hybrid");
    if (index != IndexPlace::automatic)
      p.field("index",
              "cache.index: {} needs a kind with an index, found full: leave it auto, or choose "
              "kind lsh or hybrid",
              yaml_text(index));
  }
  if (resident_layers.any() && (place == CachePlace::device || kind != CacheKind::full))
    p.field("resident_layers",
            "cache.resident_layers: {} needs cache.place host and cache.kind full: set both, or "
            "leave it none",
            yaml_text(resident_layers));
  if (place == CachePlace::device && attend != Attend::automatic)
    p.field(
        "attend",
        "cache.attend: {} needs cache.place host, found device: set place host, or leave it auto",
        yaml_text(attend));
  if (place == CachePlace::device && index != IndexPlace::automatic)
    p.field(
        "index",
        "cache.index: {} needs cache.place host, found device: set place host, or leave it auto",
        yaml_text(index));
  check_host_dtype(*this, p);
  if ((!is_quantized() || dtype == NumberType::int8) && wide_layers != Cache().wide_layers)
    p.field("wide_layers",
            "cache.wide_layers: needs dtype k8v4, k6v4 or int4, found {}: set dtype, or leave "
            "wide_layers out",
            yaml_text(dtype));
  if (index == IndexPlace::host && kind != CacheKind::full &&
      (attend == Attend::gpu || attend == Attend::both))
    p.field("attend",
            "cache.attend: {} needs an index in GPU memory, found cache.index host: set index "
            "device, or attend cpu",
            yaml_text(attend));
  if (place == CachePlace::host && kind == CacheKind::lsh &&
      (attend == Attend::both || (attend == Attend::cpu && index == IndexPlace::device)))
    p.field("attend",
            "cache.attend: kind lsh attends where its tables are, found {} with index {}: set "
            "attend cpu and index host, attend gpu, or kind hybrid",
            yaml_text(attend), yaml_text(index));
  if (place == CachePlace::host && kind == CacheKind::hybrid && index != IndexPlace::host &&
      (attend == Attend::cpu || attend == Attend::both) && hybrid.tail == HybridTail::sampled)
    p.field("attend",
            "cache.attend: {} does not support tail sampled with an index in GPU memory: set "
            "cache.hybrid.tail means, attend gpu, or cache.index host",
            yaml_text(attend));
  if (kind == CacheKind::retrieval) {
    const int64_t least = 2 * retrieval.chunk + retrieval.force_recent;
    if (retrieval.budget < least)
      p.field("retrieval.budget",
              "cache.retrieval.budget: {} tokens do not hold two chunks of {} and {} recent "
              "tokens: set at least {}, or smaller chunks",
              retrieval.budget.value, retrieval.chunk, retrieval.force_recent.value, least);
  }
  if (kind != CacheKind::snapkv) return;
  const int64_t fixed = snapkv.window + sinks;
  if (snapkv.budget <= fixed)
    p.field("snapkv.budget",
            "cache.snapkv.budget: {} tokens hold only the window of {} and {} sinks: set at least "
            "{}, or a smaller window",
            snapkv.budget.value, snapkv.window, sinks.value, fixed + 1);
}

template Field fields_of(Model&);
template std::unique_ptr<Value> value_of(std::vector<Adapter>&);
template std::unique_ptr<Value> value_of(std::optional<std::string>&);
template std::unique_ptr<Value> value_of(Variables&);
template Field fields_of(Run&);
template Field fields_of(ServingRun&);
template Field fields_of(Sampling&);
template Field fields_of(Cache&);
template Field fields_of(Output&);
template Field fields_of(Data&);

void refuse_states(const Model& model, const std::filesystem::path& output, Problems& p) {
  constexpr const char* kText = "{0}.state: is supported only by the generators; leave it out";
  if (!model.state.empty()) p.field("model.state", kText, "model");
  if (!output.empty()) p.field("output.state", kText, "output");
}

}  // namespace tandem::recipe
