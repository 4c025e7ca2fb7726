#pragma once
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <ostream>

namespace tandem::test {

/// Reporter `costs`: for each test case a line with its CPU time, that of its processes included,
/// and its duration.
class CostReporter final : public doctest::IReporter {
 public:
  explicit CostReporter(const doctest::ContextOptions& options) : out_(*options.cout) {}

  void test_case_start(const doctest::TestCaseData& test) override {
    test_ = &test;
    cpu_s_ = cpu_seconds();
  }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    out_ << fmt::format("{:7.2f} s CPU {:7.2f} s  {}: {}\n", cpu_seconds() - cpu_s_, stats.seconds,
                        test_->m_test_suite, test_->m_name)
         << std::flush;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  static double cpu_seconds() {
    double seconds = 0;
    for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
      rusage used{};
      ::getrusage(who, &used);
      for (const timeval& t : {used.ru_utime, used.ru_stime})
        seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
    return seconds;
  }

  std::ostream& out_;
  const doctest::TestCaseData* test_ = nullptr;
  double cpu_s_ = 0;
};

DOCTEST_REGISTER_REPORTER("costs", 1, CostReporter);

}  // namespace tandem::test
