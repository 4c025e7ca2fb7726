#pragma once
// The library's C++ interface. tandem/c.h is the C interface.
#include "tandem/error.h"   // IWYU pragma: export
#include "tandem/model.h"   // IWYU pragma: export
#include "tandem/policy.h"  // IWYU pragma: export
