#include "tools/results/bench_results.h"

#include <algorithm>
#include <array>
#include <new>
#include <nlohmann/json.hpp>

#include "base/parallel.h"
#include "bench/record.h"
#include "io/file.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "io/text_file.h"

namespace tandem::tools {
namespace {

using bench::at;
using bench::Json;

BenchResults::Key key_of(const Json& r) {
  const auto count = [&](const char* pointer, int64_t otherwise) {
    const Json& value = at(r, pointer);
    return value.is_number_integer() ? value.get<int64_t>() : otherwise;
  };
  return {bench::cell(at(r, "/point")), bench::cell(at(r, "/workload/phase")),
          count("/host/threads_used", 0), count("/workload/ranks", 1)};
}

Error wrong_tool(const Json& r, const std::string& where, const std::string& file,
                 const std::string& reader) {
  constexpr std::array kReaders = {"pig-bench",      "pig-eval",      "kernel-bench",
                                   "magicdec-bench", "sequoia-bench", "magicdec-acceptance"};
  std::string tool = bench::cell(at(r, "/tool"));
  if (at(r, "/schema") == "tandem.eval/1") tool = "pig-eval";  // a log of cases
  if (tool.empty())
    return input_error(where, "expected a record of {}, found one without the key 'tool'", reader);
  const std::string phase = bench::cell(at(r, "/workload/phase"));
  Error error = input_error(where, "expected records of {2}, found one of {0}{1}", tool,
                            phase.empty() ? "" : " (" + phase + ")", reader);
  return std::ranges::find(kReaders, tool) == kReaders.end()
             ? error
             : std::move(error).hint(fmt::format("print it with {} --from {}", tool, file));
}

/// A record with the recipe and the point that this version would write.
Json present(const cli::Context& cx, Json record) {
  if (!at(record, "/recipe/sha256").is_string()) return record;
  record["recipe"] = cx.upgraded(nlohmann::json(record["recipe"]));
  record["point"] = bench::cell(at(record, "/recipe/sha256")).substr(0, 12);
  return record;
}

/// Calls `take(record)` for every whole line. Returns their bytes.
/// errors   kind input: another tool's record, or none
size_t for_each_record(const std::filesystem::path& path, const std::string& text,
                       const cli::Context& cx, const std::vector<bench::RecordView>& views,
                       const std::function<void(const Json&)>& take) {
  const size_t whole = io::whole_lines(text, path.string(), bench::kRecordBegin);
  io::for_each_ordered_jsonl(std::string_view(text).substr(0, whole), path.string(),
                             [&](const Json& record, const std::string& where) {
                               const std::string tool = bench::cell(at(record, "/tool"));
                               const auto knows = [&](const bench::RecordView& view) {
                                 return std::ranges::find(view.tools, tool) != view.tools.end();
                               };
                               if (std::ranges::none_of(views, knows))
                                 throw wrong_tool(record, where, path.string(), cx.info.name);
                               take(record);
                             });
  return whole;
}

void print_notes(cli::Context& cx, const std::vector<Json>& records,
                 const std::vector<bench::RecordView>& views) {
  for (const bench::RecordView& view : views)
    for (const std::string& line : view.notes ? view.notes(records) : std::vector<std::string>())
      cx.note(line);
}

}  // namespace

bench::Record named(bench::Record record, const cli::PointName& point) {
  record.group("point") = point.id;
  record.group("recipe") = *point.record;
  return record;
}

bool attempt(const cli::Context& cx, const std::function<void()>& work,
             const std::function<void(const Error&)>& fail) {
  try {
    work();
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::interrupted) return false;
    if (e.kind() == ErrorKind::usage) throw;  // of the whole command
    if (cx.group() && e.kind() != ErrorKind::recipe) throw;
    fail(e);
  } catch (const std::bad_alloc&) {
    if (cx.group()) throw;
    fail(Error(ErrorKind::memory, "", "not enough memory"));
  }
  return true;
}

BenchResults::BenchResults(cli::Context& cx, const std::filesystem::path& path,
                           std::vector<bench::RecordView> views)
    : cx_(cx), views_(std::move(views)) {
  if (path.empty() || path == "-") {
    if (cx.resume())
      throw usage_error("--resume",
                        "needs the file of records to continue, but output.path is not set")
          .hint("name the file of the earlier run with -o");
    if (cx.format() == "jsonl")
      file_ = std::make_unique<cli::ResultFile>(path, cx.file_mode(), cx.out);
    return;
  }
  path_ = path;
  if (cx.place().rank > 0) return;  // rank 0 writes
  if (cx.resume()) read_earlier();
  // Reported now rather than after the first measurement; pipes and devices are simply written.
  const bool exists = std::filesystem::exists(path);
  if (!exists ||
      (std::filesystem::is_regular_file(path) && cx.file_mode() != cli::FileMode::append))
    cli::check_new_file(path, cx.file_mode());
}

void BenchResults::read_earlier() {
  if (!std::filesystem::exists(path_)) return;
  const std::string text = io::read_own_output(path_);
  const size_t whole = for_each_record(path_, text, cx_, views_, [&](const Json& written) {
    if (at(written, "/status") != "ok") return;
    const Json record = present(cx_, written);
    done_.insert(key_of(record));
    lines_.push_back(record.dump());
  });
  std::filesystem::resize_file(path_, whole);
}

bool BenchResults::has(const std::string& point, const std::string& phase) const {
  const bool has = done_.contains({point, phase, max_threads(), cx_.place().size});
  return cx_.group() ? cx_.group()->agree(has) : has;
}

void BenchResults::write(const std::string& line) {
  if (file_) return file_->write(line);
  if (path_.empty()) return;
  // The file appears with its first record: a run that is stopped before leaves no file.
  if (cx_.file_mode() != cli::FileMode::append) {
    cli::ResultFile first(path_, cx_.file_mode(), cx_.out);
    first.write(line);
    first.commit();
  }
  file_ = std::make_unique<cli::ResultFile>(path_, cli::FileMode::append, cx_.out);
  if (cx_.file_mode() == cli::FileMode::append) file_->write(line);
}

void BenchResults::add(const bench::Record& record) {
  write(record.line());
  lines_.push_back(record.line());
  ++n_ok_;
}

void BenchResults::add_failure(bench::Record record, const Error& error) {
  record.set_failed(error);
  write(record.line());
  lines_.push_back(record.line());
  cx_.terminal.error(error);
  failure_ = exit_status(error.kind());
}

int BenchResults::finish() {
  if (file_) file_->commit();
  std::vector<Json> records;
  for (const std::string& line : lines_) records.push_back(Json::parse(line));
  if (cx_.format() != "jsonl" || !path_.empty())  // else they went there at once
    cx_.out.write(bench::render_records(records, views_, cx_.format()));
  print_notes(cx_, records, views_);
  constexpr int kPartial = 8;
  if (failure_ == 0) return 0;
  return n_ok_ > 0 || !done_.empty() ? kPartial : failure_;
}

int print_records_of(cli::Context& cx, const std::filesystem::path& path,
                     const std::vector<bench::RecordView>& views) {
  std::string text = io::read_text_file(path);
  if (Json::accept(text.substr(text.rfind('\n') + 1)))
    text += '\n';  // only the line break is missing
  std::vector<Json> records;
  std::set<std::string> measured;
  const auto name_of = [](const Json& r) {
    const auto& [point, phase, threads, ranks] = key_of(r);
    return fmt::format("{}/{}/{}/{}/{}/{}", point, phase, threads, ranks,
                       bench::cell(at(r, "/workload/kernel")),
                       bench::cell(at(r, "/workload/shape")));
  };
  constexpr const char* kWritten = "name a file that a run wrote with -o or --format jsonl";
  size_t whole = 0;
  try {
    whole = for_each_record(path, text, cx, views, [&](const Json& record) {
      if (at(record, "/status") == "ok") measured.insert(name_of(record));
      records.push_back(record);
    });
  } catch (Error& e) {
    if (!e.hint_text().empty()) throw;
    throw std::move(e).hint(kWritten);
  }
  std::erase_if(records, [&](const Json& record) {
    return at(record, "/status") != "ok" && measured.contains(name_of(record));
  });
  if (records.empty())
    throw input_error(path.string(), "{}",
                      whole < text.size() ? "expected full records, found only one that is cut off"
                                          : "expected records, found none")
        .hint(kWritten);
  if (whole < text.size())
    cx.warn(fmt::format("{}: the last line is incomplete and was skipped", path.string()));
  cx.out.write(bench::render_records(records, views, cx.format()));
  print_notes(cx, records, views);
  return 0;
}

}  // namespace tandem::tools
