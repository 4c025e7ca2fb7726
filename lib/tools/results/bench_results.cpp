#include "tools/results/bench_results.h"

#include <new>

#include "base/parallel.h"
#include "bench/record.h"
#include "io/file.h"
#include "io/json.h"
#include "io/jsonl.h"

namespace tandem::tools {
namespace {

/// What an earlier run measured. A torn last line, as a killed run leaves it, is cut off the file.
std::set<BenchResults::Key> read_results(const std::filesystem::path& path,
                                         const std::string& tool) {
  std::set<BenchResults::Key> done;
  if (!std::filesystem::exists(path)) return done;
  const std::string text = io::read_own_output(path);
  const size_t whole = io::whole_lines(text, path.string(), bench::kRecordBegin);
  io::for_each_jsonl(
      std::string_view(text).substr(0, whole), path.string(),
      [&](const io::Json& line, const std::string& where) {
        if (io::get_string(line, "tool", where) != tool)
          throw input_error(where, "not a record of {}", tool);
        if (io::get_string(line, "status", where) != "ok") return;
        const io::Json& workload = io::get_object(line, "workload", where);
        done.emplace(io::get_string(line, "point", where), io::get_string(workload, "phase", where),
                     io::get_int(io::get_object(line, "host", where), "threads_used", where),
                     io::find_int(workload, "ranks", where).value_or(1));
      });
  std::filesystem::resize_file(path, whole);
  return done;
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
    if (cx.group() && e.kind() != ErrorKind::recipe) throw;
    fail(e);
  } catch (const std::bad_alloc&) {
    if (cx.group()) throw;
    fail(Error(ErrorKind::memory, "", "not enough memory"));
  }
  return true;
}

io::TableFormat table_format(const std::string& name) {
  if (name == "md") return io::TableFormat::markdown;
  return name == "csv" ? io::TableFormat::csv : io::TableFormat::text;
}

BenchResults::BenchResults(cli::Context& cx, const std::filesystem::path& path, io::Table table)
    : cx_(cx), table_(std::move(table)) {
  if (path.empty() || path == "-") {
    if (cx.resume())
      throw usage_error("--resume", "continues a file of records, but output.path is not set")
          .hint("name the file of the earlier run with -o");
    if (cx.format() == "jsonl")
      file_ = std::make_unique<cli::ResultFile>(path, cx.file_mode(), cx.out);
    return;
  }
  path_ = path;
  if (cx.place().rank > 0) return;  // rank 0 writes
  if (cx.resume()) done_ = read_results(path, cx.info.name);
  // Reported now rather than after the first measurement; pipes and devices are simply written.
  const bool exists = std::filesystem::exists(path);
  if (!exists ||
      (std::filesystem::is_regular_file(path) && cx.file_mode() != cli::FileMode::append))
    cli::check_new_file(path, cx.file_mode());
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

void BenchResults::add(const bench::Record& record, std::vector<std::string> row) {
  write(record.line());
  table_.add_row(std::move(row));
  ++n_ok_;
  const bench::Json& j = record.json();
  from_cache_ |= j.contains("roofline") && j["roofline"].contains("from_cache");
}

void BenchResults::add_failure(bench::Record record, std::vector<std::string> row,
                               const Error& error) {
  record.set_failed(error);
  write(record.line());
  table_.add_row(std::move(row));
  cx_.terminal.error(error);
  failure_ = exit_status(error.kind());
}

int BenchResults::finish() {
  if (file_) file_->commit();
  if (cx_.format() != "jsonl" && table_.n_rows() > 0)
    cx_.out.write(table_.render(table_format(cx_.format())));
  if (from_cache_ && cx_.format() != "jsonl" && cx_.format() != "csv")
    cx_.out.write(fmt::format("\n{}\n", bench::kFromCache));
  constexpr int kPartial = 8;
  if (failure_ == 0) return 0;
  return n_ok_ > 0 || !done_.empty() ? kPartial : failure_;
}

}  // namespace tandem::tools
