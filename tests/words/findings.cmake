# Checks a tree with faults in each kind of text, and with the same words where they are no fault. A
# count that has risen is reported, one that has fallen is written.
file(REMOVE_RECURSE ${WORK})

function(expect status found wanted_status wanted)
  if(NOT status EQUAL wanted_status OR NOT found STREQUAL wanted)
    message(FATAL_ERROR "status ${status}, expected ${wanted_status}; found\n${found}expected\n${wanted}")
  endif()
endfunction()

string(REPEAT "many " 23 many)
# Pages: headings and tables are read for words only, code and paths are not read.
file(WRITE ${WORK}/README.md "# What this is

The law of an outlaw, his lawn and the
Laws. That it is right, a test proves: `Of code alone. What`. Why? What is it for?

- Of items some. Only
  positions alone count; each alone is fine.

| What | keys alone |
|---|---|

    Of code.

```
What alone
```

A ${many} words and one at/a/path.md. A ${many} words.
")
file(WRITE ${WORK}/build/page.md "Of a build folder.\n")
# Help: the strings of a visitor, of flags and of a tool's purpose.
file(WRITE ${WORK}/lib/section.h "template <class V>
void fields(V& visit) {
  visit(\"key\", key, between(1, 2).unit(\"tokens\"), \"of a split \"
    \"sequence\");
  visit(\"key\", key, \"model, self: what drafts\");
  visit(\"key\", key, \"sequences of a batch\");
  other(\"of another call\");
}
Flag flag{\"--flag\", \"N\", \"whether it law\"};
Flag named{.names = \"-n,--named\", .text = \"as named\"};
ToolInfo info{.purpose = \"Tell what is so\", .examples = {\"of an example\"}};
")
# Errors: the strings of calls that report one. A string after + begins no sentence.
file(WRITE ${WORK}/apps/tool.cpp "/// errors   whether there are any
int n = 1'000;  // of the first
                // line
int m;  // of the second
void f() {
  throw input_error(where, \"of {}: so many\", f(\"of these\")).hint(\"The same of \\\"a\\\"\");
  throw usage_error(\"--flag\", \"expected N\" + name + \" of the law\");
  throw unfit(\"of the end\");
  TANDEM_CHECK(x == '\"', \"reads positions alone\");
  print(\"of no error\");
}
/* Of two
 * lines. Which is it? */
// namespace of

// There are so
// many of them.
struct NodeLaws { int node_law, flaw; };
")
# Tests: names, and no help or errors.
file(WRITE ${WORK}/tests/test.cpp "TEST_CASE(\"what is refused\") {
  SUBCASE(\"of two the first\") { fail(\"of no law\"); }
}
")
file(WRITE ${WORK}/tests/test.py "\"\"\"What a docstring says.\n\nOf the second.\"\"\"
def test_of_two_the_first():
    x = '#  of no comment'  # of x
")
file(WRITE ${WORK}/recipes/a.yaml "# Whose recipe\n# this is.\na: 1\n")
file(WRITE ${WORK}/words.txt
"# A comment stays.
 0 1 0 1 5 . S1: begin with the subject
 . 9 . . . . S2: begin with a noun
 1 1 2 2 5 . S3: no fragments
 0 0 0 0 0 . S6: two sentences
 1 0 0 0 0 . S7: only

 2 1 . . . 6 law, laws: distribution
 . . 1 . 0 . so many: that many
")

set(call ${PYTHON} ${CHECK} ${WORK} --words ${WORK}/words.txt)
set(risen
"S1, page: 1, expected at most 0: begin with the subject
  --list 'S1' page prints all places; those in the files changed last:
README.md:4: That it is right, a test proves: `.
S3, error: 4, expected at most 2: no fragments
  --list 'S3' error prints all places; those in the files changed last:
apps/tool.cpp:6: of `: so many
apps/tool.cpp:6: of these
apps/tool.cpp:6: The same of \"a
apps/tool.cpp:8: of the end
S6, page: 1, expected at most 0: two sentences
  --list 'S6' page prints all places; those in the files changed last:
README.md:18: (27 words) A ${many}words and one `.
S7, page: 2, expected at most 1: only
  --list 'S7' page prints all places; those in the files changed last:
README.md:6: Only positions alone count; each alone is fine.
README.md:9: | What | keys alone |
S7, error: 1, expected at most 0: only
  --list 'S7' error prints all places; those in the files changed last:
apps/tool.cpp:9: reads positions alone
so many, comment: 1, expected at most 0: that many
  --list 'so many' comment prints all places; those in the files changed last:
apps/tool.cpp:16: There are so
")
execute_process(COMMAND ${call} OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 1
"${risen}2 counts have fallen: lower them with check-words.py --update
7 rules, 6 counts have risen
")

execute_process(COMMAND ${call} --list laws OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 0
"README.md:3: The law of an outlaw, his lawn and the
README.md:4: Laws. That it is right, a test proves: `. Why? What is it for?
lib/section.h:9: whether it law
README.md:3: The law of an outlaw, his lawn and the
README.md:4: Laws. That it is right, a test proves: `Of code alone. What`. Why? What is it for?
apps/tool.cpp:7: throw usage_error(\"--flag\", \"expected N\" + name + \" of the law\");
apps/tool.cpp:18: struct NodeLaws { int node_law, flaw; };
apps/tool.cpp:18: struct NodeLaws { int node_law, flaw; };
lib/section.h:9: Flag flag{\"--flag\", \"N\", \"whether it law\"};
")
execute_process(COMMAND ${call} --list S2 help OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 0
"lib/section.h:3: of a split sequence
lib/section.h:5: model, self: what drafts
lib/section.h:9: whether it law
lib/section.h:10: as named
")
execute_process(COMMAND ${call} --list S3 comment OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 0
"apps/tool.cpp:2: of the first line
apps/tool.cpp:4: of the second
apps/tool.cpp:12: Of two lines.
tests/test.py:3: Of the second.
tests/test.py:5: of x
")
execute_process(COMMAND ${call} --list S2 error RESULT_VARIABLE status ERROR_VARIABLE found)
expect("${status}" "${found}" 1 "--list: ${WORK}/words.txt has no counts of 'S2 error'\n")

# --update does not raise counts.
execute_process(COMMAND ${call} --update OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 1 "${risen}7 rules, 6 counts have risen\n")
file(READ ${WORK}/words.txt found)
expect(0 "${found}" 0
"# A comment stays.
       0       1       0       1       3       .  S1: begin with the subject
       .       4       .       .       .       .  S2: begin with a noun
       1       1       2       2       5       .  S3: no fragments
       0       0       0       0       0       .  S6: two sentences
       1       0       0       0       0       .  S7: only

       2       1       .       .       .       6  law, laws: distribution
       .       .       1       .       0       .  so many: that many
")
execute_process(COMMAND ${call} --stats OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 0
"    page    help   error    test comment  source
       1       1       0       1       3       .  S1: begin with the subject
       .       4       .       .       .       .  S2: begin with a noun
       1       1       4       2       5       .  S3: no fragments
       1       0       0       0       0       .  S6: two sentences
       2       0       1       0       0       .  S7: only
       2       1       .       .       .       6  law, laws: distribution
       .       .       1       .       1       .  so many: that many
       8       6       7       3      10       .  sentences
    10.6     3.5     2.9     3.7     3.6       .  mean words a sentence
")

file(WRITE ${WORK}/README.md "Plain words.\n")
file(WRITE ${WORK}/apps/tool.cpp "")
execute_process(COMMAND ${call} --update OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 0 "7 rules, 0 counts have risen\n")
file(WRITE ${WORK}/README.md "Plain words.\n\n* Of one more.\n")
execute_process(COMMAND ${call} OUTPUT_VARIABLE found RESULT_VARIABLE status)
expect("${status}" "${found}" 1
"S3, page: 1, expected at most 0: no fragments
  --list 'S3' page prints all places; those in the files changed last:
README.md:3: Of one more.
7 rules, 1 counts have risen
")
file(WRITE ${WORK}/words.txt "1 2 law: distribution\n")
execute_process(COMMAND ${call} RESULT_VARIABLE status ERROR_VARIABLE found)
expect("${status}" "${found}" 1
"${WORK}/words.txt:1: expected 6 counts and 'NAME: what to say', found '1 2 law: distribution'\n")
