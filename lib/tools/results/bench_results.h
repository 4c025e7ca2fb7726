#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "bench/record_view.h"
#include "cli/context.h"

namespace tandem::bench {
class Record;
}

namespace tandem::tools {

/// Section `output` of a benchmark.
struct BenchOutput {
  std::filesystem::path path;

  template <class V>
  void fields(V& v) {
    v("path", path, "file of records, one JSON line each, empty or - = none");
  }
};

/// Records of a sweep, as its points come in. With an output file, records are added to it at once,
/// so that a killed run can resume. Standard output gets all of them in the form of --format:
/// those that --resume found first.
class BenchResults {
 public:
  /// What a record is about: point, phase, and threads and ranks, which ids of points leave out.
  using Key = std::tuple<std::string, std::string, int64_t, int64_t>;

  /// Reads the existing records for --resume.
  /// errors   kind usage: nothing to resume, or a file that exists; kind input: another tool's file
  BenchResults(cli::Context& cx, const std::filesystem::path& path,
               std::vector<bench::RecordView> views);

  /// Whether this was measured, with as many threads and ranks; as rank 0 knows, whose file it is.
  bool has(const std::string& point, const std::string& phase) const;
  void add(const bench::Record& record);
  /// The same for a point that failed; `error` is also reported on standard error.
  void add_failure(bench::Record record, const Error& error);
  /// Prints the records. The exit status: 0, 8 if only some points failed, else that of the error.
  int finish();

 private:
  void write(const std::string& line);
  /// What an earlier run measured. A torn last line, as a killed run leaves it, is cut off the
  /// file.
  void read_earlier();

  cli::Context& cx_;
  std::filesystem::path path_;             // empty: records go to standard output, or nowhere
  std::unique_ptr<cli::ResultFile> file_;  // null before the first record of path_
  std::set<Key> done_;
  std::vector<bench::RecordView> views_;
  std::vector<std::string> lines_;  // of records, to be printed
  int n_ok_ = 0, failure_ = 0;
};

/// Does a part of a sweep, a point or a phase of one, and reports its error to `fail`: the sweep
/// goes on. False: it was interrupted, which is no failure. Of several ranks the others do not know
/// of an error, but of one in the recipe, which all have: any other ends the run.
bool attempt(const cli::Context& cx, const std::function<void()>& work,
             const std::function<void(const Error&)>& fail);

/// Says which point of a sweep, by which recipe, a record is about.
bench::Record named(bench::Record record, const cli::PointName& point);

/// Serves --from: prints the records of a file in the form of --format. A failed record is left out
/// where another run of the same has succeeded, and so is a last line that a killed run has torn.
/// errors   kind input: no file, no records, records of another tool
int print_records_of(cli::Context& cx, const std::filesystem::path& path,
                     const std::vector<bench::RecordView>& views);

}  // namespace tandem::tools
