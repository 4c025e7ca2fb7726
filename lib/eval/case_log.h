#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/answer_log.h"
#include "eval/attention_error.h"
#include "eval/gate_quantiles.h"
#include "eval/perplexity.h"
#include "eval/protocols.h"
#include "eval/settings.h"
#include "io/json_fwd.h"

namespace tandem::eval {

/// One judged case.
struct CaseRecord {
  Task task = Task::needle1;
  int64_t length = 0;
  int index = 0;
  std::vector<Outcome> outcomes;
};

/// One judged question of a file.
struct OwnRecord {
  std::string task;         // its name in tables
  int64_t record = 0;       // of the file, from 1
  std::string id = {};      // JSON; empty without one; not read back
  std::string fingerprint;  // of the question
  std::vector<Outcome> outcomes;
};

/// What a log holds.
struct CaseLog {
  std::vector<CaseRecord> cases;
  std::vector<OwnRecord> own;
  std::vector<AnswerRecord> answers;             // of sets of questions
  std::optional<std::vector<TextQuality>> text;  // of the perplexity task
  std::optional<std::vector<AttentionQuality>> attention;
  std::optional<MeasuredThresholds> channels;
  std::string device;      // of the run that began it; empty in logs of older versions
  size_t whole_bytes = 0;  // up to a line that a crash tore; 0: not even the header is whole
  int n_repeated = 0;      // lines that are there twice, and count once

  size_t n_judged() const { return cases.size() + own.size() + answers.size(); }
};

// A log is a JSON Lines file: a header with the recipe, then a line for every case as it is judged,
// so that an interrupted run loses one case at most. `names` are those of the policies.
/// device   that the run computes on
std::string header_line(const io::Json& recipe, const std::string& device = {});
std::string case_line(const CaseRecord& record, const std::vector<std::string>& names);
/// Texts and log-probabilities are for readers of the log; read_log leaves them.
std::string own_line(const OwnRecord& record, const std::vector<std::string>& names);
std::string text_line(const std::vector<TextQuality>& text, const std::vector<std::string>& names);

std::string attention_line(const std::vector<AttentionQuality>& attention,
                           const std::vector<std::string>& names);
std::string channels_line(const MeasuredThresholds& channels);

/// Numbers of one policy on text, as records give them.
io::Json quality_json(const TextQuality& quality, bool is_reference);
io::Json attention_json(const AttentionQuality& quality);

/// Reads a log of the same recipe, or what a run has left that was killed before its first line was
/// whole. Logs of versions that counted no reads have none.
/// recipe     {"sha256": ..., "effective": {...}}
/// settings   of the recipe, which say what its cases are
/// upgraded   gives a recipe of an earlier version the present form
/// errors     kind input: malformed, a case that the recipe has not or that is not judged in full,
///            two lines about the same that differ; kind recipe: of another recipe, naming the keys
///            that differ
CaseLog read_log(const std::filesystem::path& path, const io::Json& recipe,
                 const Settings& settings, const std::vector<std::string>& names,
                 const std::function<io::Json(const io::Json&)>& upgraded = {});

}  // namespace tandem::eval
