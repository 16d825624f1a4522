package container_test

const stepVariable = "PAGURUS_CONTAINER_TEST_STEP"

func takeStep(string) int { return 0 }
