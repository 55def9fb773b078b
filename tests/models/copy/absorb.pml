/* Dependencies, absorption, laziness, abort: a slot for every task, one thread of the client. */
#ifndef TASKS
#define TASKS 3
#endif
#define SLOTS TASKS
#ifndef SEGS
#define SEGS 2
#endif
#define BUFFERS 5
#ifndef WORKERS
#define WORKERS 1
#endif
#define THREADS 1
#define LENGTH 9
#define FINE 0
#define ABORTS 1
#define HANDLERS 0
#define DEATH 0
#include "copy.pml"
#include "service.pml"
#include "client.pml"

#define A 0
#define B 1
#define C 2
#define D 3
#define E 4
#define LAST (SEGS - 1)

init {
	byte k;
	atomic {
		if
		:: hasty = 0
		:: hasty = 1
		fi;
		if
		:: nap = 0
		:: nap = 1
		fi;
		if
		:: /* B is written between the two copies of a chain */
			OP(SUBMIT, A, B, LAZY); OP(WRITE, B, 0, 0); OP(SUBMIT, B, C, 0);
			OP(READ, C, 0, 0); OP(READ, C, LAST, 0)
		:: /* A is written while C may be read from there */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, 0); OP(WRITE, A, 0, 0);
			OP(READ, C, 0, 0)
		:: /* write after write */
			OP(SUBMIT, A, C, 0); OP(SUBMIT, B, C, 0); OP(READ, C, 0, 0)
		:: /* the newest of two writers */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, D, B, LAZY); OP(SUBMIT, B, C, 0);
			OP(READ, C, 0, 0); OP(WRITE, A, 0, 0); OP(WRITE, D, LAST, 0)
		:: /* write after read */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, D, A, 0); OP(READ, A, 0, 0);
			OP(READ, B, LAST, 0)
		:: /* write after a read that is absorbed */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, 0); OP(SUBMIT, D, A, 0);
			OP(READ, C, 0, 0); OP(READ, A, 0, 0)
		:: /* abort of the lazy middle, then its buffers are used again */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, LAZY); OP(ABORT, B, 0, 0);
			OP(WRITE, A, 0, 0); OP(WRITE, B, LAST, 0); OP(READ, C, 0, 0);
			OP(READ, C, LAST, 0)
		:: /* the same, with a part that the program has used */
			OP(SUBMIT, A, B, LAZY); OP(WRITE, B, 0, 0); OP(SUBMIT, B, C, LAZY);
			OP(ABORT, B, 0, 0); OP(READ, B, 0, 0); OP(READ, C, 0, 0)
		:: /* two in a row are read past, the middle one is aborted */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, LAZY); OP(SUBMIT, C, D, 0);
			OP(ABORT, C, 0, 0); OP(WRITE, A, 0, 0); OP(READ, D, 0, 0)
		:: /* write after write and after read at once */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, LAZY); OP(SUBMIT, D, B, 0);
			OP(READ, B, 0, 0); OP(READ, C, 0, 0)
		:: /* an exchange */
			OP(SUBMIT, A, D, LAZY); OP(SUBMIT, B, A, 0); OP(SUBMIT, D, B, 0);
			OP(READ, B, 0, 0); OP(READ, A, LAST, 0)
		:: /* a buffer that is filled anew again and again */
			OP(SUBMIT, A, B, 0); OP(WRITE, A, 0, 0); OP(SUBMIT, A, C, LAZY);
			OP(WRITE, A, LAST, 0); OP(SUBMIT, A, D, 0); OP(READ, D, 0, 0)
#if TASKS > 3
		:: /* three in a row are read past */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, LAZY); OP(SUBMIT, C, D, LAZY);
			OP(SUBMIT, D, E, 0); OP(ABORT, C, 0, 0); OP(WRITE, A, LAST, 0);
			OP(READ, E, 0, 0)
		:: /* read past to a source that is written behind it */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, D, B, LAZY); OP(SUBMIT, B, C, LAZY);
			OP(SUBMIT, E, D, 0); OP(READ, C, 0, 0); OP(READ, D, LAST, 0)
		:: /* two destinations from one middle that is then written */
			OP(SUBMIT, A, B, LAZY); OP(SUBMIT, B, C, LAZY); OP(SUBMIT, B, D, 0);
			OP(SUBMIT, E, B, 0); OP(WRITE, A, 0, 0); OP(READ, C, 0, 0);
			OP(READ, B, LAST, 0)
#endif
		fi;
		OP(END, 0, 0, 0); OP(FINISH, 0, 0, 0);
		start()
	}
}
