#include <doctest/doctest.h>

#include "io/table.h"

using namespace tandem::io;

TEST_SUITE("io/table") {
  TEST_CASE("three forms of one table") {
    Table table({{"method", Align::left}, {"tok/s"}, {"note", Align::left}});
    table.add_row({"full", "12.5 \u00b1 0.1", "a,b"});
    table.add_row({"a|b", "3", "say \"x\"\ntwice"});
    CHECK(table.n_rows() == 2);
    CHECK(table.render(TableFormat::text) ==
          "method       tok/s  note\n"
          "full    12.5 \u00b1 0.1  a,b\n"
          "a|b              3  say \"x\" twice\n");
    CHECK(table.render(TableFormat::markdown) ==
          "| method |      tok/s | note             |\n"
          "| ------ | ---------: | ---------------- |\n"
          "| full   | 12.5 \u00b1 0.1 | a,b              |\n"
          "| a\\|b   |          3 | say \"x\"<br>twice |\n");
    CHECK(table.render(TableFormat::csv) ==
          "method,tok/s,note\n"
          "full,12.5 \u00b1 0.1,\"a,b\"\n"
          "a|b,3,\"say \"\"x\"\"\ntwice\"\n");
  }

  TEST_CASE("narrow columns and wide characters stay aligned") {
    Table table({{"n"}, {"\u4e2d\u6587", Align::left}});
    table.add_row({"10", "x"});
    CHECK(table.render(TableFormat::text) == " n  \u4e2d\u6587\n10  x\n");
    CHECK(table.render(TableFormat::markdown) ==
          "|   n | \u4e2d\u6587 |\n"
          "| --: | ---- |\n"
          "|  10 | x    |\n");
  }
}
