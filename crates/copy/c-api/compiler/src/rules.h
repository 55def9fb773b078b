// Options of the pass, and the names of its rules.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#ifndef UNLADE_RULES_H
#define UNLADE_RULES_H

#include <cstdint>

namespace unlade {

/// Shortest copy that is turned, in bytes.
uint64_t thresholdBytes();

/// Least work between a copy and a sync of it, in simple instructions.
uint64_t windowInstructions();

/// Most syncs of one copy: more would be much code.
constexpr unsigned SyncsMax = 64;

/// Returns true if a rule is in force. Every rule always is, except in the build for tests
/// (UNLADE_TEST_RULES), where the variable UNLADE_WITHOUT names rules, with commas, that are not: so a
/// test shows that it fails without its rule.
#ifdef UNLADE_TEST_RULES
bool rule(const char *Name);
#else
constexpr bool rule(const char *) { return true; }
#endif

} // namespace unlade

#endif
