#include "run_tests.h"

int main(int argc, char** argv) { return tandem::test::run_tests(argc, argv); }
