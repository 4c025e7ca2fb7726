#include "bench/record_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "bench/roofline.h"

namespace tandem::bench {
namespace {

/// A field of csv and flat, and where records have it.
struct FlatField {
  const char* name;
  bool is_text;
  std::vector<const char*> at;  // the first that a record has
};

// Documented in docs/reference.md, in this order.
const FlatField kSubject[] = {
    {"model", true, {"/model/name", "/recipe/effective/model/path"}},
    {"device", true, {"/workload/device", "/recipe/effective/run/device"}},
    {"threads", false, {"/host/threads_used"}},
    {"context",
     false,
     {"/workload/context_tokens", "/workload/prompt_tokens", "/recipe/effective/run/context"}},
};
// Records of benchmarks have these, too.
const FlatField kMeasured[] = {
    {"phase", true, {"/workload/phase"}},
    {"kernel", true, {"/workload/kernel"}},
    {"shape", true, {"/workload/shape"}},
    {"method", true, {"/workload/method", "/recipe/effective/cache/kind"}},
    {"draft", true, {"/workload/draft/name"}},
    {"batch", false, {"/workload/batch", "/recipe/effective/run/batch"}},
    {"temperature", false, {"/workload/temperature"}},
    {"gamma", false, {"/spec/mean_gamma", "/spec/gamma"}},
    {"tok_s",
     false,
     {"/throughput/decode_tok_s", "/throughput/prefill_tok_s", "/predicted/decode_tok_s"}},
    {"tok_s_p50", false, {}},  // by main_timing, as the rest of this block
    {"tok_s_sd", false, {}},
    {"ms_mean", false, {}},
    {"ms_sd", false, {}},
    {"ms_p50", false, {}},
    {"ms_p99", false, {}},
    {"samples", false, {}},
    {"steady", false, {"/steady"}},
    {"speedup", false, {"/spec/speedup_measured", "/predicted/speedup"}},
    {"baseline_ratio", false, {"/baseline/ratio"}},
    {"ci_low", false, {"/spec/speedup_ci95_low", "/baseline/ci95_low"}},
    {"ci_high", false, {"/spec/speedup_ci95_high", "/baseline/ci95_high"}},
    {"speedup_to_end", false, {"/spec/speedup_to_end"}},
    {"speedup_end_to_end", false, {"/spec/speedup_end_to_end"}},
    {"speedup_predicted", false, {"/spec/speedup_predicted"}},
    {"pays_from_token", false, {"/spec/pays_from_new_tokens"}},
    {"alpha", false, {"/spec/alpha", "/acceptance/drafted/alpha", "/workload/alpha_assumed"}},
    {"alpha_se", false, {"/acceptance/drafted/alpha_stderr"}},
    {"tested_alpha", false, {"/acceptance/tested/alpha"}},
    {"tested_alpha_se", false, {"/acceptance/tested/alpha_stderr"}},
    {"tokens_per_round", false, {"/spec/mean_tokens_per_round", "/predicted/tokens_per_round"}},
    {"accepted_frac", false, {"/spec/share_accepted"}},
    {"draft_ms", false, {"/spec/draft_ms"}},
    {"target_ms", false, {"/spec/target_ms", "/predicted/verify_ms"}},
    {"verify_ms", false, {"/spec/verify_ms"}},
    {"rest_ms", false, {"/spec/rest_ms", "/predicted/rest_ms"}},
    {"round_ms", false, {"/spec/round_ms", "/predicted/round_ms"}},
    {"ttft_ms", false, {"/latency/ttft_ms"}},
    {"tpot_ms", false, {"/latency/tpot_ms", "/predicted/tpot_ms"}},
    {"gb_s", false, {"/roofline/achieved_gbps"}},
    {"read_frac", false, {"/roofline/frac_of_copy"}},
    {"tflop_s", false, {"/roofline/achieved_tflops"}},
    {"gemm_frac", false, {"/roofline/frac_of_matmul"}},
    {"keys_frac", false, {"/attention/selected_keys_frac"}},
    {"peak_bytes", false, {"/memory/cpu/peak"}},
    {"read_gb_s", false, {"/limits/mem_read_gbps"}},
    {"f32_gflop_s", false, {"/limits/f32_gflops"}},
    {"gemm_f32_gflop_s", false, {"/limits/gemm_f32_gflops"}},
    {"gemm_bf16_gflop_s", false, {"/limits/gemm_bf16_gflops"}},
};
// Group `quality` of pig-eval; a column's name has '_' for '/'.
constexpr const char* kQuality[] = {
    // answers
    "task", "policy", "kind", "sparse", "reference", "group", "protocol", "score", "length",
    "n_cases", "correct", "ci95_low", "ci95_high", "difference", "difference_stderr",
    "difference_ci95_low", "difference_ci95_high", "ratio", "ratio_ci95_low", "ratio_ci95_high",
    "falls_behind", "n_no_answer", "n_at_limit", "reads/selected", "reads/fixed", "reads/bytes",
    "spec/gamma", "spec/verify", "spec/lossy", "spec/aal", "spec/k", "spec/density", "spec/apu",
    "spec/rollback", "spec/rounds",
    // perplexity
    "n_tokens", "nll/mean", "nll/stderr", "ppl/mean", "ppl/stderr", "nll_difference/mean",
    "nll_difference/stderr", "kl_mean", "kl_stderr", "kl_p99", "top1_agree",
    // attention
    "n_queries", "error/mean", "error/stderr", "lse_error/mean", "lse_error/stderr",
    "ranking_loss/mean", "ranking_loss/stderr", "visible", "selected", "exact", "fixed",
    "index_bytes", "key_bytes",
    // channels
    "keep"};

std::string pointer_of(std::string key) {
  std::ranges::replace(key, '.', '/');
  return "/" + key;
}

bool is_in_list(std::string_view pointer) {
  for (size_t i = 0; i + 1 < pointer.size(); ++i)
    if (pointer[i] == '/' && pointer[i + 1] >= '0' && pointer[i + 1] <= '9') return true;
  return false;
}

/// The last name of a path, as the model's record has it.
std::string name_of_folder(const std::filesystem::path& path) {
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// Tokens a second of the same samples as main_timing: their deviation follows.
bool times_tokens(const Json& record) {
  const std::string phase = cell(at(record, "/workload/phase"));
  return phase == "decode" || phase == "prefill";
}

Json timing_field(const Json& record, std::string_view name) {
  const Json& t = main_timing(record);
  if (name == "tok_s_sd" || name == "tok_s_p50") {
    if (!times_tokens(record) || t.is_null() || t["mean"] <= 0 || t["p50"] <= 0) return {};
    const Json& speed =
        at(record, cell(at(record, "/workload/phase")) == "decode" ? "/throughput/decode_tok_s"
                                                                   : "/throughput/prefill_tok_s");
    if (!speed.is_number()) return {};
    const double mean = t["mean"];
    return speed.get<double>() *
           (name == "tok_s_sd" ? t["stddev"].get<double>() / mean : mean / t["p50"].get<double>());
  }
  constexpr std::array kNames = {std::pair{"ms_mean", "/mean"}, std::pair{"ms_sd", "/stddev"},
                                 std::pair{"ms_p50", "/p50"}, std::pair{"ms_p99", "/p99"},
                                 std::pair{"samples", "/n"}};
  for (const auto& [field, pointer] : kNames)
    if (name == field) return at(t, pointer);
  return {};
}

/// The value of a field, null if the record does not say; `auto` in a recipe says nothing.
Json value_of(const FlatField& field, const Json& record) {
  if (field.at.empty()) return timing_field(record, field.name);
  for (const std::string_view pointer : field.at) {
    const Json& found = at(record, std::string(pointer));
    if (field.is_text ? !found.is_string() : !found.is_number() && !found.is_boolean()) continue;
    if (pointer.starts_with("/recipe/") && (found == 0 || found == "auto")) continue;
    return field.name == std::string_view("model") ? Json(name_of_folder(found)) : found;
  }
  return {};
}

/// One number or text; a truth is 1 or 0; empty for null.
std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (value.is_number_float()) return fmt::format("{:.9g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string line_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

bool is_of_phase(const Json& record) {
  const std::string phase = cell(at(record, "/workload/phase"));
  return phase != "plain" && phase != "point" && at(record, "/workload/draft").is_null();
}

const Json& at(const Json& record, const std::string& pointer) {
  static const Json none;
  const Json::json_pointer where(pointer);
  return record.is_object() && record.contains(where) ? record.at(where) : none;
}

std::string cell(const Json& value, const char* form) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return std::to_string(value.get<int64_t>());
  return value.is_number() ? fmt::format(fmt::runtime(form), value.get<double>()) : "";
}

std::string failure_of(const Json& record) {
  return at(record, "/status") == "failed" ? cell(at(record, "/error/message")) : "";
}

std::string read_share_cell(const Json& roofline) {
  if (at(roofline, "/from_cache") == true) return "-";
  const Json& share = at(roofline, "/frac_of_copy");
  return share.is_number() ? percent(share) : "";
}

const Json& main_timing(const Json& record) {
  for (const char* name : {"decode_step", "round", "step", "switch", "prefill", "load"})
    if (const Json& timing = at(record, std::string("/timing/") + name); !timing.is_null())
      return timing;
  return at(record, "/timing/none");
}

Json flat_fields(const Json& record, const std::vector<std::string>& swept) {
  Json out = {{"tool", at(record, "/tool")},
              {"point", at(record, "/point")},
              {"status", at(record, "/status")},
              {"error", failure_of(record).empty() ? Json() : Json(failure_of(record))}};
  const auto add = [&](std::span<const FlatField> fields) {
    for (const FlatField& field : fields) out[field.name] = value_of(field, record);
  };
  add(kSubject);
  if (at(record, "/tool") == "pig-eval") {
    for (std::string name : kQuality) {
      const Json& value = at(record, "/quality/" + name);
      std::ranges::replace(name, '/', '_');
      out[name] = value;
    }
  } else {
    add(kMeasured);
  }
  for (const std::string& key : swept) {
    const Json& value = at(record, "/recipe/effective" + pointer_of(key));
    out[key] = value.is_structured() ? Json(line_of(value)) : value;
  }
  return out;
}

std::vector<std::string> swept_keys(const std::vector<Json>& records) {
  std::vector<std::string> keys;
  const auto add = [&](const std::string& key) {
    if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
  };
  for (const Json& record : records)
    for (const Json& key : at(record, "/recipe/swept")) add(key);
  if (!keys.empty() || records.empty()) return keys;
  const Json first = at(records.front(), "/recipe/effective");
  const Json flat = first.is_object() ? first.flatten() : Json::object();
  for (const Json& record : records)
    for (const auto& [pointer, value] : flat.items()) {
      if (is_in_list(pointer) || pointer.starts_with("/output/")) continue;
      const Json& other = at(record, "/recipe/effective" + pointer);
      if (other == value || other.is_null() || other.is_structured() || value.is_null()) continue;
      std::string key = pointer.substr(1);
      std::ranges::replace(key, '/', '.');
      add(key);
    }
  return keys;
}

std::string csv_of(const std::vector<Json>& rows) {
  std::vector<io::Table::Column> columns;
  for (const Json& row : rows)
    for (const auto& [name, value] : row.items())
      if (std::ranges::find(columns, name, &io::Table::Column::title) == columns.end())
        columns.push_back({name});
  io::Table table(columns);
  for (const Json& row : rows) {
    std::vector<std::string> cells;
    for (const auto& [title, align] : columns) cells.push_back(csv_cell(row.value(title, Json())));
    table.add_row(std::move(cells));
  }
  return rows.empty() ? "" : table.render(io::TableFormat::csv);
}

std::string render_records(const std::vector<Json>& records, const std::string& format) {
  std::string text;
  if (format == "csv" || format == "flat") {
    std::vector<Json> rows;
    for (const auto swept = swept_keys(records); const Json& record : records)
      rows.push_back(flat_fields(record, swept));
    if (format == "csv") return csv_of(rows);
    for (Json& row : rows) {
      for (auto it = row.begin(); it != row.end();)
        it = it->is_null() ? row.erase(it) : std::next(it);
      text += line_of(row) + "\n";
    }
    return text;
  }
  for (const Json& record : records) {
    text += (format == "json" && !text.empty() ? ",\n" : "") + line_of(record);
    if (format != "json") text += "\n";
  }
  return format == "json" ? "[\n" + text + (text.empty() ? "]\n" : "\n]\n") : text;
}

std::string render_records(const std::vector<Json>& records, const std::vector<RecordView>& views,
                           const std::string& format) {
  if (format != "text" && format != "md") return render_records(records, format);
  std::string text;
  for (const RecordView& view : views) {
    io::Table table(view.columns);
    bool from_cache = false;
    for (const Json& record : records) {
      if (!view.takes(record)) continue;
      std::vector<std::string> cells = view.row(record);
      cells.resize(view.columns.size());
      table.add_row(std::move(cells));
      from_cache |= at(record, "/roofline/from_cache") == true;
    }
    if (table.n_rows() == 0) continue;
    text += (text.empty() ? "" : "\n") + table.render(table_format(format));
    if (from_cache) text += fmt::format("\n{}\n", kFromCache);
  }
  return text;
}

io::TableFormat table_format(const std::string& name) {
  if (name == "md") return io::TableFormat::markdown;
  return name == "csv" ? io::TableFormat::csv : io::TableFormat::text;
}

}  // namespace tandem::bench
