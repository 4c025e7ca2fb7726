#pragma once
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/table.h"

namespace tandem::bench {

using Json = nlohmann::ordered_json;

/// The programs that measure phases of models and drafts.
inline std::vector<std::string_view> bench_tools() {
  return {"pig-bench", "magicdec-bench", "sequoia-bench"};
}

/// How records of one kind become rows of a table.
struct RecordView {
  std::vector<std::string_view> tools;            // that write such records
  std::function<bool(const Json& record)> takes;  // true: a record is of this kind
  std::vector<io::Table::Column> columns;
  std::function<std::vector<std::string>(const Json& record)> row;
  /// Sentences that compare the records, for standard error.
  std::function<std::vector<std::string>(const std::vector<Json>& records)> notes = {};
};

/// True for a record of a model's phase, false for one of a draft or of plain decoding next to
/// drafts.
bool is_of_phase(const Json& record);
/// The value at a JSON pointer, null where the record has none.
const Json& at(const Json& record, const std::string& pointer);
/// Its cell: a number in an fmt form, a string as it is; empty for null.
std::string cell(const Json& value, const char* form = "{}");
/// The error of a record that failed; empty otherwise.
std::string failure_of(const Json& record);
/// The share of the memory read rate in a group `roofline`: percent, "-" where from_cache.
std::string read_share_cell(const Json& roofline);
/// timing.<phase> of what the record is about; null without one.
const Json& main_timing(const Json& record);

/// The fields that csv and flat show: those of the table in docs/reference.md that the record's
/// tool may have, null where this record has none, then the swept keys. Numbers, booleans and
/// texts.
/// swept  recipe keys to show, by their dotted names
Json flat_fields(const Json& record, const std::vector<std::string>& swept);
/// A table of such objects; the columns are their keys, in the order of the first that has each.
std::string csv_of(const std::vector<Json>& rows);
/// Recipe keys that the records' sweeps set; of records that do not say, those whose values differ.
std::vector<std::string> swept_keys(const std::vector<Json>& records);

/// The records in one of the forms of --format: text, md, csv, json, jsonl, flat. Records of
/// several kinds make a table each.
std::string render_records(const std::vector<Json>& records, const std::vector<RecordView>& views,
                           const std::string& format);
/// All but text and md, which are the tool's own.
std::string render_records(const std::vector<Json>& records, const std::string& format);

/// The table format that --format names.
io::TableFormat table_format(const std::string& name);

}  // namespace tandem::bench
